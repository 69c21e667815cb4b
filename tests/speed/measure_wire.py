"""How fast a frame comes back: alone, 32 in flight, from 50 connections, and while somebody else sends 16 MiB."""

import time
from statistics import median

from tests.speed.place import Numbers, Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Row, ratio

# In each round they take turns: the machine drifts more from minute to minute than the kernels differ.
FLOOR, V1, V2 = "floor", "v1", "v2"
Series = dict[str, list[Numbers]]


def take_turns(place: Place, mode: str, *versions: str) -> Series:
    seconds = 0.25 if place.quick else 0.7
    series: Series = {FLOOR: [], **{version: [] for version in versions}}
    with place.floor() as floor, place.serve() as kernel:
        for _ in range(3 if place.quick else 7):
            series[FLOOR].append(place.load(floor, mode, "-e", "-s", seconds))
            for version in versions:
                series[version].append(place.load(kernel, mode, "-s", seconds, *(["-2"] if version == V2 else [])))
    return series


def pick(series: Series, who: str, what: str) -> list[float]:
    return [numbers[what] for numbers in series[who]]


def rtt(place: Place) -> list[Row]:
    series = take_turns(place, "rtt", V1, V2)
    floor, v1, v2 = (pick(series, who, "p50_us") for who in (FLOOR, V1, V2))
    to_floor, to_v1 = ratio(v1, floor), ratio(v2, v1)
    return [
        Row(
            "NOOP, one connection, p50",
            f"{median(v1):.1f} µs",
            f"{median(floor):.1f} µs",
            str(to_floor),
            "<= 3.0 x floor",
            to_floor.middle <= 3.0,
            {"p50_us": median(v1), "floor_us": median(floor), "ratio": to_floor.middle},
        ),
        Row(
            "  the same in version 2",
            f"{median(v2):.1f} µs",
            f"v1: {median(v1):.1f} µs",
            str(to_v1),
            "<= 1.6 x v1",
            to_v1.middle <= 1.6,
            {"p50_us": median(v2), "v1_us": median(v1), "ratio": to_v1.middle},
        ),
    ]


def flight(place: Place) -> list[Row]:
    series = take_turns(place, "flight 32", V1, V2)
    floor, v1, v2 = (pick(series, who, "rate") for who in (FLOOR, V1, V2))
    to_floor, to_v1 = ratio(v1, floor), ratio(v2, v1)
    return [
        Row(
            "NOOP, 32 in flight",
            f"{median(v1):,.0f}/s",
            f"{median(floor):,.0f}/s",
            str(to_floor),
            ">= 500,000/s",
            median(v1) >= 500_000,
            {"per_s": median(v1), "floor_per_s": median(floor), "ratio": to_floor.middle},
        ),
        Row(
            "  the same in version 2",
            f"{median(v2):,.0f}/s",
            f"v1: {median(v1):,.0f}/s",
            str(to_v1),
            numbers={"per_s": median(v2), "v1_per_s": median(v1), "ratio": to_v1.middle},
        ),
    ]


def conns(place: Place) -> list[Row]:
    series = take_turns(place, "conns 50", V1)
    floor, v1 = (pick(series, who, "rate") for who in (FLOOR, V1))
    to_floor = ratio(v1, floor)
    return [
        Row(
            "NOOP, 50 connections",
            f"{median(v1):,.0f}/s",
            f"{median(floor):,.0f}/s",
            str(to_floor),
            ">= 0.25 x floor",
            to_floor.middle >= 0.25,
            {"per_s": median(v1), "floor_per_s": median(floor), "ratio": to_floor.middle},
        )
    ]


def beside_heavy(place: Place, shape: str, *, echo: bool = False) -> tuple[Numbers, Numbers]:
    """The numbers of 64 callers, one of which asks each ms, and of the one who meanwhile sends the heavy bodies."""
    seconds = 1.5 if place.quick else 4.0
    options = ["-e"] if echo else []
    with (
        place.floor() if echo else place.serve() as server,
        place.loading(server, "paced 64", *options, "-w", 1000, "-s", seconds) as others,
    ):
        time.sleep(0.2)  # they have connected, and warm up for a second, when the heavy one comes
        heavy = place.load(server, f"heavy {shape}", *options, "-w", 0, "-s", seconds + 1.5)
        light = others(40)
    if heavy["ended_s"] < light["ended_s"]:
        raise MeasurementError("the heavy client ended before the others had been measured")
    return light, heavy


SHAPES = {"noop": "NOOP of 16 MiB", "nested": "SEND of 1 MiB, 64 deep", "wide": "SEND of 1 MiB, 350,000 objects"}


def heavy(place: Place) -> list[Row]:
    floor, _ = beside_heavy(place, "noop", echo=True)
    rows = []
    for shape, name in SHAPES.items():
        light, heavy = beside_heavy(place, shape)
        ms = light["p99_us"] / 1000
        rows.append(
            Row(
                f"NOOP p99 beside {name}",
                f"{ms:.1f} ms",
                f"{floor['p99_us'] / 1000:.1f} ms" if shape == "noop" else "-",
                target="<= 50 ms",
                met=ms <= 50,
                numbers={
                    "p99_ms": ms,
                    "p50_ms": light["p50_us"] / 1000,
                    "max_ms": light["max_us"] / 1000,
                    "heavy_per_s": heavy["rate"],
                    "heavy_p50_ms": heavy["p50_us"] / 1000,
                },
            )
        )
    return rows
