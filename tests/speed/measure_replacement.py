"""How soon a killed agent has a successor: the process exists when it was forked, which nobody outside sees directly.

So it is bounded from both sides. *Seen*, the number that is judged, is when a LIST that names the new process was
answered and /proc had it: later than the fork by an answer and a quarter of a millisecond. *First instruction* is what
the new program itself noted, so exec is in it too. *Reported* is what LIST's uptime makes of it, in whole milliseconds.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Row

TARGET = 10.0  # milliseconds
BETWEEN_POLLS = 0.000_25  # seconds; asking without a pause would keep the kernel from the work that is measured
SETTLE = 0.02  # seconds a new life is left alone before it is killed in turn


@frozen
class Kill:
    """When the signal was sent and its effect seen, in ns of CLOCK_MONOTONIC; the uptime that LIST then gave, in ms."""

    at: int
    seen: int
    uptime: float | None


def _pid(caller: Caller, name: str) -> int:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if pid := caller.agents().get(name, {}).get("pid"):
            return int(pid)
        time.sleep(0.01)
    raise MeasurementError(f"{name} has no process")


def _kill(caller: Caller, name: str) -> Kill:
    """Returns when there is another process in its place."""
    old = _pid(caller, name)
    at = time.monotonic_ns()
    os.kill(old, signal.SIGKILL)
    while True:
        agent = caller.agents().get(name, {})
        seen = time.monotonic_ns()
        new = agent.get("pid")
        if new and new != old and os.path.exists(f"/proc/{new}"):
            return Kill(at, seen, agent.get("uptime_ms"))
        if seen - at > 5e9:
            raise MeasurementError(f"{name} had no new process 5 s after its own was killed: {agent}")
        time.sleep(BETWEEN_POLLS)


def _births(file: Path, n: int) -> list[int]:
    """When each life of the agent began, in ns of CLOCK_MONOTONIC, once there are ``n``."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= n:
            return [int(line.split()[0]) for line in lines]
        time.sleep(0.002)
    raise MeasurementError(f"life {n} of the agent has not begun within 5 s")


def _kills(place: Place, child: Mapping[str, Any], births: Path | None = None) -> tuple[Sequence[Kill], Sequence[int]]:
    """The kills, and where the agent notes its births, those which followed them."""
    kills: list[Kill] = []
    with place.serve([child]) as kernel, Caller(kernel.socket) as caller:
        for life in range(1, (12 if place.quick else 40) + 1):
            _pid(caller, child["name"])
            if births:
                _births(births, life)
            time.sleep(SETTLE)
            kills.append(_kill(caller, child["name"]))
        notes = _births(births, len(kills) + 1)[1:] if births else []
    return kills, notes


def _row(what: str, ms: Sequence[float], reported: Sequence[float]) -> Row:
    numbers = {"median_ms": median(ms), "max_ms": max(ms)}
    if reported:
        numbers["reported_ms"] = median(reported)
    return Row(
        what,
        f"{median(ms):.1f} ms (worst {max(ms):.1f})",
        target=f"<= {TARGET:g} ms",
        met=median(ms) <= TARGET,
        numbers=numbers,
    )


def _seen(kills: Sequence[Kill]) -> list[float]:
    return [(kill.seen - kill.at) / 1e6 for kill in kills]


def _reported(kills: Sequence[Kill]) -> list[float]:
    return [(kill.seen - kill.at) / 1e6 - kill.uptime for kill in kills if kill.uptime is not None]


def replacement(place: Place) -> list[Row]:
    usual, _ = _kills(place, {"name": "usual", "command": ["/bin/sleep", "infinity"], "restart": "permanent"})
    births = place.directory / "births"
    bare, born = _kills(
        place,
        # Only an agent that sees the host's files can note there when it began.
        {
            "name": "bare",
            "command": [str(place.tools.born), str(births)],
            "restart": "permanent",
            "isolation": "none",
        },
        births,
    )
    first = [(birth - kill.at) / 1e6 for birth, kill in zip(born, bare, strict=True)]
    return [
        _row("killed agent: its successor exists", _seen(usual), _reported(usual)),
        _row("  the same without isolation", _seen(bare), _reported(bare)),
        Row(
            "  and its program's first instruction",
            f"{median(first):.1f} ms (worst {max(first):.1f})",
            numbers={"median_ms": median(first), "max_ms": max(first)},
        ),
    ]
