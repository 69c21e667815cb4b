"""Runs the measurements and prints them as a table: ``python -m tests.speed.bench [--quick]``.

Status 0: everything ran, and whether a target is met is for the reader to see. 1: something did not run or answered
wrongly. 2: there is no C compiler. Client and server share one CPU; what says otherwise says it where it is done.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tests.speed.measure_agents import agents
from tests.speed.measure_audit import audit
from tests.speed.measure_beside import beside
from tests.speed.measure_files import files
from tests.speed.measure_host import idle, ready
from tests.speed.measure_jails import jails
from tests.speed.measure_llm import llm
from tests.speed.measure_permissions import permissions
from tests.speed.measure_replacement import replacement
from tests.speed.measure_spawn import spawn
from tests.speed.measure_wire import conns, flight, heavy, rtt
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Row, as_json, as_markdown, as_text, machine
from tests.speed.tools import NoCompilerError, compile_tools

MEASUREMENTS: dict[str, Callable[[Place], list[Row]]] = {
    "rtt": rtt,
    "flight": flight,
    "conns": conns,
    "heavy": heavy,
    "ready": ready,
    "idle": idle,
    "agents": agents,
    "replacement": replacement,
    "spawn": spawn,
    "jails": jails,
    "audit": audit,
    "llm": llm,
    "files": files,
    "permissions": permissions,
    "beside": beside,
}
LIMIT, QUICK_LIMIT = 280, 100  # seconds for everything
NO_TIME = "the whole run had no time left"


class OutOfTimeError(Exception):
    """The whole run has taken as long as it may."""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def measure(place: Place, names: Sequence[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows, and by name why one has none: what fails does not keep the others from being measured."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(QUICK_LIMIT if place.quick else LIMIT)
    try:
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            failed[name] = NO_TIME
            try:
                rows += MEASUREMENTS[name](place)
            except (MeasurementError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                failed[name] = str(error) if isinstance(error, MeasurementError) else repr(error)
            else:
                del failed[name]
    except OutOfTimeError:
        failed |= dict.fromkeys(names[names.index(name) + 1 :], NO_TIME)
    finally:
        signal.alarm(0)
    return rows, failed


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.speed.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: 100 seconds, not 280")
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="just this; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="where (default: %(default)s)")
    parser.add_argument(
        "--kernel",
        default=shlex.join([sys.executable, "-m", "agentos", "run"]),
        help="the command that the configuration and its options are added to",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended then too
    about = machine()  # before we load it ourselves
    with tempfile.TemporaryDirectory(prefix="speed-", ignore_cleanup_errors=True) as directory:
        try:
            tools = compile_tools(Path(directory))
        except NoCompilerError as error:
            print(error, file=sys.stderr)
            return 2
        place = Place(Path(directory), tools, shlex.split(asked.kernel), asked.cpu, asked.quick)
        rows, failed = measure(place, asked.only or list(MEASUREMENTS))
    print((as_markdown if asked.markdown else as_text)(about, rows))
    for name, why in failed.items():
        print(f"{'- ' if asked.markdown else ''}{name}: not measured: {why}")
    if asked.json:
        asked.json.write_text(json.dumps(as_json(about, rows, failed), indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
