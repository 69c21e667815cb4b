"""Trace system calls through a running kernel: which functions, files and rooms one call passes (``make roads``).

A kernel runs with a profile hook in all its threads. Two NOOP calls with a marker as their body enclose each call, so
the trace begins and ends inside the kernel. Each call is made several times, and only functions that it passes each
time count, because other tasks of the kernel work meanwhile. A room is a folder of the project. Functions that a
library generates (attrs, cattrs) and the libraries themselves aren't counted.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType

import attrs

import agentos
from tests.support.wire import EXEC, NOOP, PATIENCE, READ, SPAWN, THINK, WRITE, Wire

ROOT = Path(agentos.__file__).parents[1]
SETTLED = 0.3  # seconds
TURNS = 5  # in which each call is made once; the first one imports, and isn't counted
BEGIN, END = b"road begins", b"road ends"
TOML = """
[llm]
provider = "offline"

[[supervisor.children]]
name = "reader"
command = ["sleep", "1000"]
permissions = "standard"
required = true
"""


def calls(turn: int) -> dict[str, tuple[int, object]]:
    """The calls to trace, by name; ``turn`` makes an agent's name unique."""
    return {
        "NOOP": (NOOP, b""),
        "READ": (READ, {"path": "notes.md"}),
        "THINK": (THINK, {"prompt": "hello"}),
        "EXEC": (EXEC, {"command": "true"}),
        "SPAWN": (SPAWN, {"name": f"child-{turn}", "command": ["sleep", "1000"]}),
    }


@attrs.frozen
class Road:
    """What a call passes through: ``functions`` in the order of their first call, as (file, qualified name)."""

    functions: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, turns: Sequence[Sequence[tuple[str, str]]]) -> "Road":
        """The functions that were called in each of these turns, in the order of the first."""
        return cls([function for function in dict.fromkeys(turns[0]) if all(function in turn for turn in turns)])

    @property
    def rooms(self) -> Sequence[str]:
        """The folders of the functions, in the same order, without repetitions in a row."""
        return [room for room, _ in groupby(str(Path(file).parent) for file, _ in self.functions)]

    @property
    def files(self) -> int:
        return len({file for file, _ in self.functions})

    @property
    def changes(self) -> int:
        """Of room: from one folder to another."""
        return len(self.rooms) - 1

    @property
    def returns(self) -> int:
        """Changes into a room that the call had already left."""
        return len(self.rooms) - len(set(self.rooms))


class Tracer:
    """Profile hook of a kernel's threads; writes one line of JSON to ``path`` for each traced call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recording = False
        self.calls: list[tuple[str, str]] = []
        self.frames: dict[int, FrameType] = {}  # kept alive: an id is unique as long as its frame exists

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(f"{ROOT}/") or "site-packages" in code.co_filename:
            return
        if code.co_name.startswith("<"):  # a comprehension or a lambda
            return
        if code.co_name == "echo":
            self.mark(frame.f_locals["body"])
        elif self.recording and id(frame) not in self.frames:  # otherwise a coroutine that is resumed
            self.frames[id(frame)] = frame
            self.calls.append((code.co_filename[len(f"{ROOT}/") :], code.co_qualname))

    def mark(self, body: bytes) -> None:
        if body == BEGIN:
            self.calls, self.frames, self.recording = [], {}, True
        elif body == END:
            self.recording = False
            with self.path.open("a") as file:
                file.write(json.dumps(self.calls) + "\n")
        elif self.recording:
            self.calls.append(("agentos/syscalls/__init__.py", "echo"))


def run_traced(path: Path) -> None:
    """Run ``agentos run`` with the rest of the command line in this process, traced."""
    from agentos.__main__ import main

    tracer = Tracer(path)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    main()


@contextlib.contextmanager
def traced_kernel(place: Path) -> Iterator[Path]:
    """A traced kernel with one jailed agent; its trace file."""
    (place / "agentos.toml").write_text(TOML)
    path, log = place / "trace", place / "log"
    command = [sys.executable, "-m", "tests.architecture.roads", str(path), "run", str(place / "agentos.toml")]
    with log.open("w") as out:
        kernel = subprocess.Popen(
            [*command, "--socket", str(place / "s"), "--state-dir", str(place / "state")], stdout=out, stderr=out
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while "| ready" not in log.read_text():
                if kernel.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the kernel didn't start:\n{log.read_text()}")
                time.sleep(0.05)
            yield path
        finally:
            kernel.terminate()
            kernel.wait(PATIENCE)


def trace_calls() -> dict[str, Road]:
    """The roads of a jailed agent's calls."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as name, traced_kernel(Path(name)) as path:
        directory = json.loads((Path(name) / "state" / "run.json").read_text())["directory"]
        with Wire(f"{directory}/1.sock") as wire:
            make_call(wire, WRITE, {"path": "notes.md", "content": "notes"})
            for turn in range(TURNS):
                for op, body in calls(turn).values():
                    time.sleep(SETTLED)  # otherwise the audit log still writes the call before
                    wire.ask(NOOP, BEGIN)
                    make_call(wire, op, body)
                    wire.ask(NOOP, END)
        return read_roads(path)


def make_call(wire: Wire, op: int, body: object) -> None:
    reply = wire.ask(op, body)
    if op != NOOP and not reply.json["success"]:
        raise RuntimeError(f"the traced call failed: {reply}")


def read_roads(path: Path) -> dict[str, Road]:
    names = list(calls(0))
    traces = [[(file, name) for file, name in json.loads(line)] for line in path.read_text().splitlines()]
    return {name: Road.of(traces[len(names) + at :: len(names)]) for at, name in enumerate(names)}


def print_table() -> None:
    roads = trace_calls()
    print("call      functions  files  changes of room  returns to a room")
    for call, road in roads.items():
        print(f"{call:10}{len(road.functions):9}{road.files:7}{road.changes:17}{road.returns:19}")


if __name__ == "__main__":
    run_traced(Path(sys.argv.pop(1))) if len(sys.argv) > 1 else print_table()
