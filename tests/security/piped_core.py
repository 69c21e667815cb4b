"""Agents crash where core dumps go through a pipe to a program, which Linux starts as root outside of all walls.

``python -m tests.security.piped_core`` changes the pattern of the whole machine: for a guest, which forgets it. Prints
as JSON whose crashes the program was told of.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.kernel import running, until
from tests.support.wire import PATIENCE
from tests.system.agents import write

PATTERN = Path("/proc/sys/kernel/core_pattern")
HELPER = """#!/bin/sh
cat > /dev/null
echo "$1" >> {log}
"""
CRASH = "import os\nos.abort()\n"
BY_COMMAND = ["sh", "-c", "kill -ABRT $$"]


def main() -> None:
    place = Path("/tmp/piped-core")
    place.mkdir()
    log = place / "log"
    log.touch()
    (place / "helper").write_text(HELPER.format(log=log))
    (place / "helper").chmod(0o755)
    PATTERN.write_text(f"|{place}/helper %e")

    told: dict[str, list[str]] = {}

    def note(whose: str, crash: Callable[[], None]) -> None:
        before = len(log.read_text().splitlines())
        crash()
        # Linux starts the program before whoever crashed has ended; another crash behind it says that it has written.
        bare("last")
        until(lambda: log.read_text().endswith("last\n"), "the program was told of the last crash")
        told[whose] = [one for one in log.read_text().splitlines()[before:] if one != "last"]

    note("with a limit of 0", lambda: bare("zero"))
    with running() as kernel, kernel.client() as client:
        script = write(kernel, "crashes.py", CRASH)
        kernel.place.chmod(0o755)  # in a guest nothing can be mapped to another user

        def agent(name: str, **fields: Any) -> None:
            reply = client.spawn(name, **fields)
            end = client.wait(name, timeout=PATIENCE) if reply["success"] else reply
            assert end["signal"] == signal.SIGABRT, end

        note("exec", lambda: agent("exec", script=script))
        note("fast", lambda: agent("fast", script=script, runtime="fast"))
        note("command", lambda: agent("command", command=BY_COMMAND))
    print(json.dumps(told))


def bare(name: str) -> None:
    """A crash without walls, by a program of this name that asks for no core file."""
    program = Path("/tmp", name)
    if not program.exists():
        program.symlink_to(os.path.realpath(sys.executable))
    subprocess.run(
        [str(program), "-I", "-S", "-c", CRASH],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        check=False,
    )


if __name__ == "__main__":
    main()
