"""Compare the setups: ``python -m tests.compare [--seconds 60] [--runs 3] [--setup NAME] [--docs]``."""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.speed.processes import MeasurementError

from . import report
from .machine import Machine
from .setups import MEMORY, PYTHON, SETUPS, Outcome, Run, Sink, play


@contextlib.contextmanager
def provider() -> Iterator[tuple[str, int]]:
    """The provider's address and pid."""
    command = [sys.executable, "-m", "tests.compare.provider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def play_once(setup: str, seconds: float) -> Outcome:
    """One run of a setup, in a directory that is removed unless it failed."""
    directory = Path(tempfile.mkdtemp(prefix="compare-", dir="/tmp"))
    sink = Sink()
    with provider() as (url, pid), sink.serving() as address:
        outcome = play(setup, Run(directory, url, address, seconds), sink, Machine(MEMORY, {pid}))
    shutil.rmtree(directory)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compare", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="that each setup runs (60)")
    parser.add_argument("--runs", type=int, default=3, help="of each setup (3)")
    parser.add_argument("--setup", action="append", choices=SETUPS, help="this one; may be given several times")
    parser.add_argument("--docs", action="store_true", help="write the page and its picture")
    options = parser.parse_args()
    if not PYTHON.exists():
        print(f"{PYTHON} is missing: run `make compare`", file=sys.stderr)
        return 1
    outcomes = []
    try:
        for number in range(options.runs):
            for setup in options.setup or SETUPS:
                outcomes.append(play_once(setup, options.seconds))
                print(f"run {number + 1}: {report.line(outcomes[-1])}", flush=True)
    except MeasurementError as error:
        print(f"python -m tests.compare: {error}", file=sys.stderr)
        return 1
    print(report.as_table(outcomes))
    if options.docs:
        report.write(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
