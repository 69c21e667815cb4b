"""How fast a frame comes back: alone, 32 in flight, from 50 connections, and while somebody else sends 16 MiB."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.speed.caller import RECORD_START, RECORD_STOP, Caller
from tests.speed.place import Numbers, Place
from tests.speed.processes import MeasurementError, Server, allow_open_files, pinned
from tests.speed.results import Figure, Result, Row

# In each round they take turns: the machine drifts more from minute to minute than the kernels differ.
FLOOR, V1, V2 = "floor", "v1", "v2"
Series = dict[str, list[Numbers]]

RTT = (
    Row("NOOP, one connection, p50", " µs", most_ratio=1.9),
    Row("NOOP, one connection, p50, version 2", " µs", most_ratio=1.6, floor=V1),
)
RECORDED = (Row("NOOP, one connection, p50, recorded, more than unrecorded", " µs", most=15),)
FLIGHT = (
    Row("NOOP, 32 in flight", "/s", least_ratio=0.25, more=True),
    Row("NOOP, 32 in flight, version 2", "/s", floor=V1, more=True),
)
CONNS = (
    Row("NOOP, 50 connections", "/s", least_ratio=0.33, more=True),
    Row("NOOP, 200 connections", "/s", least_ratio=0.25, more=True),
    Row("1,500 connections at once: another process's first answer", " ms", most=200),
)
CROWD = 1500
CROWD_PROGRAM = """
import socket, sys
crowd = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for one in crowd:
    one.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""
SHAPES = ("noop", "nested", "wide")
HEAVY = tuple(
    Row(f"NOOP p99 beside {name}", " ms", most=50)
    for name in ("NOOP of 16 MiB", "SEND of 1 MiB, 64 deep", "SEND of 1 MiB, 350,000 objects")
)


def take_turns(place: Place, mode: str, *versions: str) -> Series:
    seconds = 0.25 if place.quick else 0.3
    series: Series = {FLOOR: [], **{version: [] for version in versions}}
    with place.floor() as floor, place.serve() as kernel:
        for _ in range(3 if place.quick else 5):
            series[FLOOR].append(place.load(floor, mode, "-e", "-s", seconds))
            for version in versions:
                series[version].append(place.load(kernel, mode, "-s", seconds, *(["-2"] if version == V2 else [])))
    return series


def pick(series: Series, who: str, what: str) -> list[float]:
    return [numbers[what] for numbers in series[who]]


def rtt(place: Place) -> Iterator[Result]:
    yield from _both_versions(place, "rtt", "p50_us", RTT)


def recorded(place: Place) -> Iterator[Result]:
    more = []
    with place.serve() as kernel, Caller(kernel.socket) as operator:
        for _ in range(3 if place.quick else 5):
            plain = place.load(kernel, "rtt", "-s", 0.3)["p50_us"]
            operator.call(RECORD_START, b'{"max_bytes": 1000000000}')
            more.append(place.load(kernel, "rtt", "-s", 0.3)["p50_us"] - plain)
            if not json.loads(operator.call(RECORD_STOP))["entry_count"]:
                raise MeasurementError("nothing was recorded")
    yield Result.of(RECORDED[0], more)


def flight(place: Place) -> Iterator[Result]:
    yield from _both_versions(place, "flight 32", "rate", FLIGHT)


def _both_versions(place: Place, mode: str, what: str, rows: tuple[Row, Row]) -> Iterator[Result]:
    series = take_turns(place, mode, V1, V2)
    floor, v1, v2 = (pick(series, who, what) for who in (FLOOR, V1, V2))
    yield Result.of(rows[0], v1, floor)
    yield Result.of(rows[1], v2, v1)


def conns(place: Place) -> Iterator[Result]:
    for row, count in zip(CONNS, (50, 200), strict=False):
        series = take_turns(place, f"conns {count}", V1)
        yield Result.of(row, pick(series, V1, "rate"), pick(series, FLOOR, "rate"))
    allow_open_files(CROWD + 200)
    with place.serve() as kernel:
        yield Result.of(CONNS[2], [_answer_beside_crowd(place, kernel) for _ in range(3 if place.quick else 5)])


def _answer_beside_crowd(place: Place, kernel: Server) -> float:
    """Milliseconds to connect and be answered, from when one process has opened all the connections of a crowd."""
    with pinned(place.cpu):
        command = [sys.executable, "-c", CROWD_PROGRAM, str(kernel.socket), str(CROWD)]
        crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with crowd:
            assert crowd.stdout is not None
            if crowd.stdout.readline() != "connected\n":
                raise MeasurementError(f"{CROWD} connections could not be opened")
            begin = time.monotonic()
            with Caller(kernel.socket) as honest:
                honest.noop()
                took = time.monotonic() - begin
    with Caller(kernel.socket) as last:
        last.noop()  # the connections of the crowd were closed before
    return took * 1000


def beside_heavy(place: Place, server: Server, shape: str, *, echo: bool = False) -> float:
    """The p99 in ms of 64 callers, one of which asks each ms, while another one sends the heavy bodies."""
    seconds = 1.0
    options = ["-e"] if echo else []
    with place.loading(server, "paced 64", *options, "-w", 1000, "-s", seconds) as others:
        time.sleep(0.2)  # they have connected, and warm up for a second, when the heavy one comes
        heavy = place.load(server, f"heavy {shape}", *options, "-w", 0, "-s", seconds + 1.5)
        light = others(40)
    if heavy["ended_s"] < light["ended_s"]:
        raise MeasurementError("the heavy client ended before the others had been measured")
    return light["p99_us"] / 1000


def heavy(place: Place) -> Iterator[Result]:
    rounds = range(1 if place.quick else 2)
    with place.serve() as kernel, place.floor() as echo:
        for row, shape in zip(HEAVY, SHAPES, strict=True):
            ms = [beside_heavy(place, kernel, shape) for _ in rounds]
            floor = Figure(beside_heavy(place, echo, shape, echo=True)) if shape == "noop" else None
            yield Result(row, Figure.of(ms), floor)
