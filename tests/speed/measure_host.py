"""What a kernel costs before anything is asked of it: the time to start, the memory of clients that say nothing."""

import contextlib
import resource
import subprocess
import sys
import time
from statistics import median

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.proc import memory
from tests.speed.processes import MeasurementError, pinned
from tests.speed.results import Row

IDLE = 2000  # connections


def _bare_interpreter(place: Place) -> float:
    begin = time.monotonic()
    with pinned(place.cpu):
        subprocess.run([sys.executable, "-c", ""], check=True)
    return time.monotonic() - begin


def _start(place: Place) -> tuple[float, float]:
    """Seconds from exec to the ready line, and to the answer of a NOOP asked as soon as that was read."""
    with place.serve() as kernel:
        with Caller(kernel.socket) as caller:
            caller.noop()
        answered = time.monotonic()
        kernel.stop()
    return kernel.ready_at - kernel.started_at, answered - kernel.started_at


def ready(place: Place) -> list[Row]:
    _start(place)  # the first may have to compile its modules and read them from the disk
    bare, starts = [], []
    for _ in range(3 if place.quick else 9):
        bare.append(_bare_interpreter(place))
        starts.append(_start(place))
    line, answer = (median(column) for column in zip(*starts, strict=True))
    slowest = max(answered for _, answered in starts)
    return [
        Row(
            "ready: exec to the first NOOP answered",
            f"{answer:.3f} s",
            f"python: {median(bare):.3f} s",
            target="<= 0.6 s",
            met=answer <= 0.6,
            numbers={"answer_s": answer, "line_s": line, "slowest_s": slowest, "python_s": median(bare)},
        )
    ]


def idle(place: Place) -> list[Row]:
    """The kernel's own pages, by what they grew; a socket's buffers are the host kernel's and count for nobody."""
    wanted = IDLE + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MeasurementError(f"{IDLE} connections need {wanted} open files; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))  # the kernel inherits it
    with place.serve() as kernel, contextlib.ExitStack() as open_ones:
        first = open_ones.enter_context(Caller(kernel.socket))
        first.noop()
        before = memory(kernel.pid)
        for _ in range(IDLE):
            open_ones.enter_context(Caller(kernel.socket)).noop()  # silent ones might not even have been accepted
        first.noop()
        after = memory(kernel.pid)
    pss, rss, dirty = (
        (b - a) / IDLE / 1024
        for a, b in ((before.pss, after.pss), (before.rss, after.rss), (before.dirty, after.dirty))
    )
    return [
        Row(
            f"{IDLE:,} idle connections, each",
            f"{pss:.1f} KiB",
            target="<= 12 KiB",
            met=pss <= 12,
            numbers={"pss_kib": pss, "rss_kib": rss, "private_dirty_kib": dirty},
        )
    ]
