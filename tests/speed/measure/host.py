"""What a kernel costs before anything is asked of it: the time to start, the memory of clients that say nothing."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.proc import memory
from tests.speed.processes import allow_open_files, pinned
from tests.speed.results import Figure, Result, Row

CONNECTIONS, ROUNDS = 2000, 4
READY = (Row("ready: exec to the first NOOP answered", " s", most=0.45, floor="python"),)
IDLE = (Row(f"{CONNECTIONS:,} idle connections, each", " KiB", most=12),)


def _bare_interpreter(place: Place) -> float:
    begin = time.monotonic()
    with pinned(place.cpu):
        subprocess.run([sys.executable, "-c", ""], check=True)
    return time.monotonic() - begin


def _start(place: Place) -> float:
    """Seconds from exec to the answer of a NOOP asked as soon as the ready line was read."""
    with place.serve() as kernel:
        with Caller(kernel.socket) as caller:
            caller.noop()
        answered = time.monotonic()
        kernel.stop()
    return answered - kernel.started_at


def ready(place: Place) -> Iterator[Result]:
    _start(place)  # the first may have to compile its modules and read them from the disk
    bare, starts = [], []
    for _ in range(3 if place.quick else 5):
        bare.append(_bare_interpreter(place))
        starts.append(_start(place))
    yield Result(READY[0], Figure.of(starts), Figure.of(bare))


def idle(place: Place) -> Iterator[Result]:
    """The kernel's own pages, by what they grew; a socket's buffers are the host kernel's and count for nobody."""
    allow_open_files(CONNECTIONS + 200)
    grown = []
    with place.serve() as kernel, contextlib.ExitStack() as open_ones:
        first = open_ones.enter_context(Caller(kernel.socket))
        first.noop()
        for _ in range(ROUNDS):
            before = memory(kernel.pid).pss
            for _ in range(CONNECTIONS // ROUNDS):
                open_ones.enter_context(Caller(kernel.socket)).noop()  # silent ones might not have been accepted
            first.noop()
            grown.append((memory(kernel.pid).pss - before) / (CONNECTIONS // ROUNDS) / 1024)
    yield Result.of(IDLE[0], grown)
