"""How soon a killed agent has a successor: the process exists when it was forked, which nobody outside sees directly.

So it is bounded from both sides. *Seen*, the number that is judged, is when a LIST that names the new process was
answered and /proc had it: later than the fork by an answer and up to a millisecond. *First instruction* is what
the new program itself noted, so exec is in it too.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Result, Row

ROWS = (
    Row("killed agent: its successor exists", " ms", most=8),
    Row("killed agent without isolation: its successor exists", " ms", most=10),
    Row("killed agent without isolation: its successor's first instruction", " ms"),
)
BETWEEN_POLLS = 0.001  # seconds; each question takes the kernel 0.2 ms, on the same CPU
SETTLE = 0.05  # seconds a new life is left alone before it is killed in turn; a jail is built ahead meanwhile


@frozen
class Kill:
    """When the signal was sent and its effect seen, in ns of CLOCK_MONOTONIC."""

    at: int
    seen: int


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
            return Kill(at, seen)
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


def _seen(kills: Sequence[Kill]) -> list[float]:
    return [(kill.seen - kill.at) / 1e6 for kill in kills]


def replacement(place: Place) -> Iterator[Result]:
    usual, _ = _kills(place, {"name": "usual", "command": ["/bin/sleep", "infinity"], "restart": "permanent"})
    yield _result(ROWS[0], _seen(usual))
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
    yield _result(ROWS[1], _seen(bare))
    yield _result(ROWS[2], [(birth - kill.at) / 1e6 for birth, kill in zip(born, bare, strict=True)])


def _result(row: Row, ms: Sequence[float]) -> Result:
    return Result.of(row, ms, note=f"worst {max(ms):.1f}")
