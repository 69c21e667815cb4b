"""1,000 subscribers, of which ten match each of 1,000 events a second, and others who ask now and then meanwhile."""

import contextlib
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.speed.caller import HEADER, MAGIC
from tests.speed.place import Numbers, Place
from tests.speed.proc import cpu_seconds, memory
from tests.speed.processes import MeasurementError, Server, allow_open_files, elsewhere, finish, give_way
from tests.speed.results import Figure, Result, Row

SUBSCRIBE, EMIT, HELLO = 0x60, 0x63, 0xFE
STREAMED, IDLE, OTHERS, STOPPED = 20, 980, 50, 40
TYPES = (STREAMED + IDLE) // 10  # of events: ten subscribers have each
RATE, LUMP = 1000, 10  # events a second, sent ten at a time
FULL = 10_300  # events that fill the ring
ROWS = (
    Row(f"NOOP p99 of {OTHERS} callers, beside 1,000 subscribers of 1,000 events/s", " ms"),
    Row(f"NOOP p99 of {OTHERS} callers, beside those subscribers to theirs alone", " ms", most_ratio=3, floor="alone"),
    Row(f"CPU time of {IDLE} subscribers that don't poll, of 1,000 events/s", " %", most=2),
    Row("memory of a stream whose reader stops", " KiB", most=64),
)


def events(place: Place) -> list[Result]:
    """In turn: the others alone; emitted without subscribers; to the idle ones; to all, with the others beside."""
    alone, beside, idle = list[float](), list[float](), list[float]()
    seconds = 1.5
    allow_open_files(4096)
    with place.serve(free=True) as kernel:
        for _ in range(2):
            alone.append(place.p99_of_paced(kernel, OTHERS, seconds - 0.5))
            without, emitted = (_cpu_share(place, kernel, seconds, 0, count) for count in (0, IDLE))
            idle.append((emitted - without) * 100)
            with _subscribers(place, kernel, seconds + 1, STREAMED, IDLE) as running:
                beside.append(place.p99_of_paced(kernel, OTHERS, seconds - 0.5))
                finish(running)
        stopped = [_memory_of_stopped(kernel) for _ in range(2)]
    ratio = Figure.of([a / b for a, b in zip(beside, alone, strict=True)])
    return [
        Result.of(ROWS[0], beside),
        Result(ROWS[1], Figure.of(beside), Figure.of(alone), ratio),
        Result.of(ROWS[2], idle),
        Result.of(ROWS[3], stopped),
    ]


def _cpu_share(place: Place, kernel: Server, seconds: float, streamed: int, idle: int) -> float:
    with _subscribers(place, kernel, seconds, streamed, idle) as running:
        return finish(running)["cpu"]


@contextlib.contextmanager
def _subscribers(
    place: Place, kernel: Server, seconds: float, streamed: int, idle: int
) -> "Iterator[subprocess.Popen[str]]":
    """A process with these subscribers, which also emits; all are subscribed.

    It runs only while the others don't: it would delay them as much as the kernel does.
    """
    with elsewhere(place.cpu):
        command = [sys.executable, "-m", "tests.speed.measure.events", str(kernel.socket), str(kernel.pid)]
        numbers = map(str, (seconds, streamed, idle))
        running = subprocess.Popen([*command, *numbers], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.wait()


def _memory_of_stopped(kernel: Server) -> float:
    """How many KiB the kernel has more for each stream of all events that isn't read, while these pass the ring."""
    with contextlib.ExitStack() as stack:
        emitter = stack.enter_context(connect(kernel.socket))
        emit(emitter, FULL)
        before = memory(kernel.pid).rss
        for _ in range(STOPPED):
            stream = stack.enter_context(connect(kernel.socket))
            _subscribe(stream, ["*"], stream=True)
        emit(emitter, FULL)
        return (memory(kernel.pid).rss - before) / STOPPED / 1024


def connect(path: Path | str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def _frame(op: int, fields: dict[str, object], number: int = 0) -> bytes:
    body = json.dumps(fields).encode()
    return HEADER.pack(MAGIC, number, op, len(body)) + body


def _subscribe(connection: socket.socket, types: list[str], *, stream: bool) -> None:
    if stream:
        connection.sendall(_frame(HELLO, {"protocol": 2}))
        connection.recv(4096)
    connection.sendall(_frame(SUBSCRIBE, {"event_types": types, "stream": stream}, int(stream)))
    if b'"subscribed"' not in (reply := connection.recv(4096)):
        raise MeasurementError(f"SUBSCRIBE: {reply!r}")


def _lump(number: int) -> bytes:
    """The requests of some events, of types in turn."""
    kinds = (f"custom.t{kind % TYPES}" for kind in range(number * LUMP, (number + 1) * LUMP))
    return b"".join(_frame(EMIT, {"event_type": kind, "data": {"text": "x" * 50}}) for kind in kinds)


def _await_replies(connection: socket.socket) -> None:
    replies = b""
    while replies.count(b'"success":true') < LUMP:
        replies += connection.recv(1 << 16)
        if b'"success":false' in replies:
            raise MeasurementError(f"EMIT: {replies!r}")


def emit(connection: socket.socket, count: int) -> None:
    """Emit events, and wait for their replies."""
    for number in range(count // LUMP):
        connection.sendall(_lump(number))
        _await_replies(connection)


def subscribe_andemit(path: str, kernel: int, seconds: float, streamed: int, idle: int) -> Numbers:
    """Emit at the rate, and read what is streamed; the share of a CPU that the kernel used, in seconds per second."""
    give_way()
    allow_open_files(4096)
    ready, kept, received = selectors.EpollSelector(), list[socket.socket](), 0
    for number in range(streamed + idle):
        kept.append(connect(path))
        _subscribe(kept[-1], [f"custom.t{number % TYPES}"], stream=number < streamed)
        if number < streamed:
            ready.register(kept[-1], selectors.EVENT_READ)
    emitter, lumps = connect(path), [_lump(number) for number in range(TYPES // LUMP)]
    print("subscribed", flush=True)
    begin, began = time.perf_counter(), cpu_seconds(kernel)
    for number in range(int(seconds * RATE / LUMP)):
        emitter.sendall(lumps[number % len(lumps)])
        _await_replies(emitter)
        while (left := begin + (number + 1) * LUMP / RATE - time.perf_counter()) > 0:
            for one, _ in ready.select(left) if streamed else ():
                received += one.fileobj.recv(1 << 16).count(b'"seq"')  # type: ignore[union-attr]
            if not streamed:
                time.sleep(left)
    took = time.perf_counter() - begin
    expected = int(seconds * RATE) * streamed / TYPES
    if took > 1.1 * seconds or received < 0.8 * expected:  # the last ones are on their way
        raise MeasurementError(f"{seconds * RATE:g} events took {took:.1f} s, {received} of {expected:g} were streamed")
    return {"cpu": (cpu_seconds(kernel) - began) / took}


if __name__ == "__main__":
    where, pid, *numbers = sys.argv[1:]
    print(json.dumps(subscribe_andemit(where, int(pid), float(numbers[0]), int(numbers[1]), int(numbers[2]))))
