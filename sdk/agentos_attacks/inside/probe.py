"""The attacker: runs the given checks, each in a child process, and reports each result.

``python probe.py TASK``, where TASK is JSON: ``checks`` by name, ``targets``, ``seconds`` for each check. Prints a
line of JSON for each: ``check``, ``outcome`` (blocked, escaped, n/a, tried, or unclear if the check itself failed) and
``detail``. Uses the standard library only; its directory is imported as a package, wherever that is mounted.
"""

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKING_SIGNALS = (signal.SIGSYS, signal.SIGKILL)  # the seccomp filter; the OOM killer
INT80_SIGNALS = (signal.SIGSEGV, signal.SIGILL)  # int 0x80 on a Linux without 32-bit calls


def main() -> None:
    """Run all checks in order. Each result is flushed at once, so that a reader need not wait for the last."""
    open_files = _list_descriptors()
    task = json.loads(sys.argv[1])
    sys.path.insert(0, os.path.dirname(_HERE))
    checks = __import__(f"{os.path.basename(_HERE)}.checks", fromlist=["BY_NAME"])
    targets = {**task["targets"], "open": open_files}
    for name in task["checks"]:
        outcome, detail = _run_check(checks.BY_NAME[name], targets, task["seconds"])
        print(json.dumps({"check": name, "outcome": outcome, "detail": detail[:400]}), flush=True)


def _list_descriptors() -> list[int]:
    """The inherited descriptors; listing them opens one more, which is left out."""
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return [int(name) for name in os.listdir(listing) if int(name) != listing and _is_open(int(name))]
    finally:
        os.close(listing)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _run_check(check: Any, targets: dict[str, Any], seconds: float) -> tuple[str, str]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _attempt(check, targets, write)
    os.close(write)
    try:
        ready = select.select([read], [], [], seconds)[0]
        result = os.read(read, 65536) if ready else b""
    finally:
        os.close(read)
        for target in (-pid, pid):
            with contextlib.suppress(OSError):
                os.kill(target, signal.SIGKILL if not ready or result else 0)
    _, how = os.waitpid(pid, 0)
    if result:
        outcome, detail = json.loads(result)
        return outcome, detail
    if not ready:
        return "unclear", f"no result in {seconds:g} s"
    return _judge_exit(check.name, os.waitstatus_to_exitcode(how))


def _judge_exit(name: str, code: int) -> tuple[str, str]:
    if code < 0 and (-code in BLOCKING_SIGNALS or ("int80" in name and -code in INT80_SIGNALS)):
        return "blocked", f"killed by {signal.Signals(-code).name}"
    return "unclear", f"ended with {code} without a result"


def _attempt(check: Any, targets: dict[str, Any], write: int) -> None:
    try:
        os.setpgid(0, 0)
        result = check.attempt(targets)
    except MemoryError:
        result = ("blocked", "MemoryError")
    except BaseException as error:
        result = ("unclear", f"{type(error).__name__}: {error}")
    os.write(write, json.dumps(result).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
