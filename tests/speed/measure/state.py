"""100 callers that store values as fast as they are answered, and others who ask now and then meanwhile.

The kernel has all CPUs. The 100 are a process that would use a whole one: it runs only while the others don't.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.speed.caller import HEADER, MAGIC
from tests.speed.place import Numbers, Place
from tests.speed.processes import MeasurementError, Server, elsewhere, finish, give_way
from tests.speed.results import Figure, Result, Row

STORE = 0x30
WRITERS, OTHERS = 100, 50
ROWS = (
    Row(f"STORE by {WRITERS} callers, each acknowledged on disk", "/s", least=5000, more=True),
    Row(f"STORE by {WRITERS} callers, p99", " ms", most=40),
    Row(f"NOOP p99 of {OTHERS} callers, beside {WRITERS} that store", " ms"),
    Row(f"NOOP p99 of {OTHERS} callers, beside those to theirs alone", " ms", most_ratio=3, floor="alone"),
)


def state(place: Place) -> list[Result]:
    """In turn: the others alone, the writers alone, and both."""
    rates, waits, alone, beside = list[float](), list[float](), list[float](), list[float]()
    seconds = 1.5
    with place.serve(free=True) as kernel:
        for _ in range(2):
            alone.append(place.p99_of_paced(kernel, OTHERS, seconds - 0.5))
            written = finish(_write(place, kernel, seconds))
            rates.append(written["rate"])
            waits.append(written["p99_ms"])
            writers = _write(place, kernel, seconds + 1)
            beside.append(place.p99_of_paced(kernel, OTHERS, seconds - 0.5))
            finish(writers)
    ratio = Figure.of([a / b for a, b in zip(beside, alone, strict=True)])
    return [
        Result.of(ROWS[0], rates),
        Result.of(ROWS[1], waits),
        Result.of(ROWS[2], beside),
        Result(ROWS[3], Figure.of(beside), Figure.of(alone), ratio),
    ]


def _write(place: Place, kernel: Server, seconds: float) -> "subprocess.Popen[str]":
    with elsewhere(place.cpu):
        command = [sys.executable, "-m", "tests.speed.measure.state", str(kernel.socket), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def write(path: Path, seconds: float) -> Numbers:
    """Store on all connections at once, a new value of 10 keys each as soon as the one before is acknowledged."""
    give_way()
    ready = selectors.EpollSelector()
    for number in range(WRITERS):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        frames = [_frame({"key": f"speed.{number}.{key}", "value": "x" * 100}) for key in range(10)]
        ready.register(connection, selectors.EVENT_READ, frames)
    sent, count, taken = dict[int, float](), 0, list[float]()
    begin = time.perf_counter()
    for one in list(ready.get_map().values()):
        sent[one.fd] = time.perf_counter()
        one.fileobj.sendall(one.data[0])  # type: ignore[union-attr]
    while (now := time.perf_counter()) < begin + seconds:
        for one, _ in ready.select(1):
            reply = one.fileobj.recv(4096)  # type: ignore[union-attr]
            if b'"success":true' not in reply:
                raise MeasurementError(f"STORE: {reply!r}")
            now = time.perf_counter()
            taken.append((now - sent[one.fd]) * 1000)
            sent[one.fd], count = now, count + 1
            one.fileobj.sendall(one.data[count % 10])  # type: ignore[union-attr]
    taken.sort()
    return {"rate": len(taken) / seconds, "p50_ms": taken[len(taken) // 2], "p99_ms": taken[len(taken) * 99 // 100]}


def _frame(fields: dict[str, object]) -> bytes:
    body = json.dumps(fields).encode()
    return HEADER.pack(MAGIC, 0, STORE, len(body)) + body


if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]), float(sys.argv[2]))))
