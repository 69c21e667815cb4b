"""The attacker: runs the given checks, each in a child process, and reports each result.

``python probe.py ORDER``, where ORDER is JSON: ``checks`` by name, ``targets``, ``seconds`` for each check. Prints a
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
BY_WALLS = (signal.SIGSYS, signal.SIGKILL)  # the seccomp filter; the OOM killer
BY_CPU = (signal.SIGSEGV, signal.SIGILL)  # int 0x80 on a Linux without 32-bit calls


def main() -> None:
    """Run all checks in order. Each result is flushed at once, so that a reader need not wait for the last."""
    open_files = _open_now()
    order = json.loads(sys.argv[1])
    sys.path.insert(0, os.path.dirname(_HERE))
    checks = __import__(f"{os.path.basename(_HERE)}.checks", fromlist=["BY_NAME"])
    targets = {**order["targets"], "open": open_files}
    for name in order["checks"]:
        outcome, detail = _bounded(checks.BY_NAME[name], targets, order["seconds"])
        print(json.dumps({"check": name, "outcome": outcome, "detail": detail[:400]}), flush=True)


def _open_now() -> list[int]:
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


def _bounded(check: Any, targets: dict[str, Any], seconds: float) -> tuple[str, str]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _attempt(check, targets, write)
    os.close(write)
    try:
        ready = select.select([read], [], [], seconds)[0]
        said = os.read(read, 65536) if ready else b""
    finally:
        os.close(read)
        for target in (-pid, pid):
            with contextlib.suppress(OSError):
                os.kill(target, signal.SIGKILL if not ready or said else 0)
    _, how = os.waitpid(pid, 0)
    if said:
        outcome, detail = json.loads(said)
        return outcome, detail
    if not ready:
        return "unclear", f"nothing came of it in {seconds:g} s"
    return _died(check.name, os.waitstatus_to_exitcode(how))


def _died(name: str, code: int) -> tuple[str, str]:
    if code < 0 and (-code in BY_WALLS or ("int80" in name and -code in BY_CPU)):
        return "blocked", f"killed by {signal.Signals(-code).name}"
    return "unclear", f"ended with {code} and said nothing"


def _attempt(check: Any, targets: dict[str, Any], write: int) -> None:
    try:
        os.setpgid(0, 0)
        said = check.attempt(targets)
    except MemoryError:
        said = ("blocked", "MemoryError")
    except BaseException as error:
        said = ("unclear", f"{type(error).__name__}: {error}")
    os.write(write, json.dumps(said).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
