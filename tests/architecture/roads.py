"""Trace system calls through a running kernel: which functions, files and rooms one call passes (``make roads``).

A kernel runs with a profile hook in all its threads. Two NOOP calls with a marker as their body enclose each call, so
the trace begins and ends inside the kernel. Other tasks of the kernel work meanwhile, so each call is made several
times, after different ones, and only functions that it passes each time count. A room is a package below agentos, with
its sub-rooms. Functions that a library generates (attrs, cattrs) and the libraries themselves aren't counted, nor are
the poller and the writer of logs: which of their functions run depends on how long the steps of other tasks take.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import attrs

import agentos
from tests.support import fork_server
from tests.support.kernel import descendants, is_zygote, until
from tests.support.wire import EXEC, NOOP, PATIENCE, READ, SPAWN, THINK, WRITE, Wire

ROOT = Path(agentos.__file__).parents[1]
OF_TIME = (f"{ROOT}/agentos/kernel/wire/poller.py", f"{ROOT}/agentos/services/logs/")
# What NOOP passes, which asks whether the kernel is idle.
IDLE = ("agentos/kernel/", "agentos/syscalls/__init__.py", "sdk/agentos_sdk/frames.py")
# What these begin at fixed times, in their tasks and threads: a slow call always meets it.
PERIODIC = {"LifeCounter.serve", "LoopLag.serve", "Sampler.serve", "Spawner.serve"}
IS_PERIODIC = ContextVar("IS_PERIODIC", default=False)
JAIL_SECONDS = 2.0
TURNS = 17  # in which each call is made once; the first one imports, and isn't counted
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

TRACED = "from tests.architecture.roads import run_traced; run_traced()"

Trace = Sequence[tuple[str, str]]  # functions that were called, as (file, qualified name)


def calls(turn: int) -> dict[str, tuple[int, object]]:
    """The calls to trace, by name; ``turn`` makes an agent's name unique."""
    return {
        "NOOP": (NOOP, b""),
        "READ": (READ, {"path": "notes.md"}),
        "THINK": (THINK, {"prompt": "hello"}),
        "EXEC": (EXEC, {"command": "true"}),
        "SPAWN": (SPAWN, {"name": f"child-{turn}", "command": ["sleep", "1000"]}),
    }


@functools.cache
def room_of(file: str) -> str:
    return str(Path(*Path(file).parent.parts[:2]))


@attrs.frozen
class Road:
    """What a call passes through: ``functions`` in the order of their first call, as (file, qualified name)."""

    functions: Trace

    @classmethod
    def of(cls, turns: Sequence[Trace]) -> "Road":
        """The functions that were called in each of these turns, in the order that changes the room least often.

        Threads and tasks that work for the call at once are interleaved differently each time.
        """
        common = set[tuple[str, str]](turns[0]).intersection(*turns[1:])
        return min(
            (cls([function for function in dict.fromkeys(turn) if function in common]) for turn in turns),
            key=lambda road: (road.changes, road.returns),
        )

    @property
    def rooms(self) -> Sequence[str]:
        """The rooms of the functions, in the same order, without repetitions in a row."""
        return [room for room, _ in groupby(room_of(file) for file, _ in self.functions)]

    @property
    def files(self) -> int:
        return len({file for file, _ in self.functions})

    @property
    def changes(self) -> int:
        """From one room to another."""
        return len(self.rooms) - 1

    @property
    def returns(self) -> int:
        """Changes into a room that the call had already left."""
        return len(self.rooms) - len(set(self.rooms))


class Tracer:
    """Profile hook of a kernel's threads; writes what the last traced call passed to ``path``, as JSON."""

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
        if code.co_filename.startswith(OF_TIME):
            return
        if code.co_name.startswith("<"):  # a comprehension or a lambda
            return
        if code.co_qualname in PERIODIC:
            IS_PERIODIC.set(True)  # a task has a context of its own, of which its threads get copies
        if code.co_name == "echo":
            self.mark(frame.f_locals["body"])
        elif self.recording and not IS_PERIODIC.get() and id(frame) not in self.frames:  # else a coroutine goes on
            self.frames[id(frame)] = frame
            self.calls.append((code.co_filename[len(f"{ROOT}/") :], code.co_qualname))

    def mark(self, body: bytes) -> None:
        if body == BEGIN:
            self.calls, self.frames, self.recording = [], {}, True
        elif body == END:
            self.recording = False
            self.path.write_text(json.dumps(self.calls))
        elif self.recording:
            self.calls.append(("agentos/syscalls/__init__.py", "echo"))


def run_traced() -> None:
    """Run the command line but for its first word, the trace file, in this process, traced."""
    from agentos.__main__ import main

    tracer = Tracer(Path(sys.argv.pop(1)))
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    main()


@contextlib.contextmanager
def traced_kernel(place: Path) -> Iterator[tuple[Path, int]]:
    """A traced kernel with one jailed agent; its trace file and its pid."""
    (place / "agentos.toml").write_text(TOML)
    path, log = place / "trace", place / "log"
    words = ["run", str(place / "agentos.toml"), "--socket", str(place / "s"), "--state-dir", str(place / "state")]
    with log.open("w") as out, open(os.devnull) as nothing:
        streams = [nothing.fileno(), out.fileno(), out.fileno()]
        kernel = fork_server.shared().fork(["-c", TRACED, str(path), *words], str(ROOT), os.environ, streams)
        try:
            until(lambda: "| ready" in log.read_text() or kernel.poll() is not None, "it is ready", show=log.read_text)
            if kernel.poll() is not None:
                raise RuntimeError(f"the kernel didn't start:\n{log.read_text()}")
            yield path, kernel.pid
        finally:
            kernel.terminate()
            kernel.wait(PATIENCE)


def trace_calls() -> dict[str, Road]:
    """The roads of a jailed agent's calls."""
    names = list(calls(0))
    found: dict[str, list[Trace]] = {name: [] for name in names}
    most = 0  # jails that waited at once
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as name, traced_kernel(Path(name)) as (path, kernel):
        directory = json.loads((Path(name) / "state" / "run.json").read_text())["directory"]
        with Wire(f"{directory}/1.sock") as wire:
            make_call(wire, WRITE, {"path": "notes.md", "content": "notes"})
            for turn in range(TURNS):
                step = 1 + turn % (len(names) - 1)  # prime to their number: each call comes after each other one
                for at in range(len(names)):
                    call = names[(turn + at * step) % len(names)]
                    wait_idle(wire, path)
                    if call == "EXEC":
                        most = wait_jails(kernel, most)
                    found[call].append(trace(wire, path, *calls(turn)[call]))
    return {name: Road.of(traces[1:]) for name, traces in found.items()}


def wait_idle(wire: Wire, path: Path) -> None:
    """Return when the kernel does nothing but answer: the call before is logged, and what it began is done."""

    def busy() -> Trace:
        return [one for one in trace(wire, path) if not one[0].startswith(IDLE)]

    deadline = time.monotonic() + PATIENCE
    while seen := busy():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the kernel wasn't idle for {PATIENCE:g} s; at last it passed {seen}")


def wait_jails(kernel: int, most: int) -> int:
    """Return how many jails wait to be used, once it is ``most`` or more.

    A call that needs one passes all that makes it if none waits. One turn where one waits is enough, as only what a
    call passes each time counts, so this gives up after ``JAIL_SECONDS``.
    """
    deadline = time.monotonic() + JAIL_SECONDS
    while True:
        count = sum(is_zygote(one.pid) for one in descendants(kernel))
        if count >= most or time.monotonic() > deadline:
            return max(count, most)
        time.sleep(0.01)


def trace(wire: Wire, path: Path, *call: Any) -> Trace:
    """The functions that are called until the kernel has answered ``call``, an opcode and a body."""
    wire.ask(NOOP, BEGIN)
    if call:
        make_call(wire, *call)
    wire.ask(NOOP, END)
    return [(file, name) for file, name in json.loads(path.read_text())]


def make_call(wire: Wire, op: int, body: object) -> None:
    reply = wire.ask(op, body)
    if op != NOOP and not reply.json["success"]:
        raise RuntimeError(f"the traced call failed: {reply}")


def print_table() -> None:
    roads = trace_calls()
    print("call      functions  files  changes of room  returns to a room")
    for call, road in roads.items():
        print(f"{call:10}{len(road.functions):9}{road.files:7}{road.changes:17}{road.returns:19}")


if __name__ == "__main__":
    print_table()
