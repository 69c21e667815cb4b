"""From a SPAWN to the agent's first system call, through a whole kernel, and how many of them it makes a second.

Beside each stands bubblewrap with the nearest that it has to our walls, from its start to the end of a program that
does nothing; in turn, and on the one CPU that everything here shares. The agent notes the time when its call was
answered, so that the answer is in it too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tests.speed.caller import Caller
from tests.speed.measure_spawn import bwrap_argv
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, pinned
from tests.speed.results import Row, ratio

SPAWN, WAIT = 0x10, 0x13
FAST = """\
import os, time
from agentos_sdk import AgentOSClient

AgentOSClient(os.environ["AGENTOS_SOCKET"]).echo("here")
os.write(1, b"%d\\n" % time.monotonic_ns())
"""
BARE = """\
import os, time, _socket
s = _socket.socket(_socket.AF_UNIX)
s.connect(os.environ["AGENTOS_SOCKET"])
s.send(b"TNGA" + bytes(13))
s.recv(17)
os.write(1, b"%d\\n" % time.monotonic_ns())
"""
REST = 0.05  # seconds before each: the kernel makes something ready for the next agent, and the host's tidies up
BATCH = 10  # at a time, where it is asked how many there can be


def jails(place: Place) -> list[Row]:
    """The latencies, then the rate."""
    if shutil.which("bwrap") is None:
        raise MeasurementError("there is no bwrap to compare with: install the package bubblewrap")
    python = [os.path.realpath(sys.executable), "-I", "-S"]
    rounds = 20 if place.quick else 100
    with pinned(place.cpu), place.serve(files={"fast.py": FAST}) as kernel, Caller(kernel.socket) as caller:
        fast = {"script": str(kernel.socket.parent / "fast.py"), "runtime": "fast"}
        ways: dict[str, Callable[[str], float]] = {
            "fast": lambda name: _spawned(caller, {"name": name, **fast}),
            "true": lambda _: _beside(bwrap_argv("/bin/true")),
            "exec": lambda name: _spawned(caller, {"name": name, "command": [*python, "-c", BARE]}),
            "python": lambda _: _beside(bwrap_argv(*python, "-c", "pass")),
        }
        taken = _in_turn(ways, rounds)
        each = _rate(caller, fast, rounds)
    return [
        _row("SPAWN, fast: to its first call (bwrap + true)", taken["fast"], taken["true"], 1.4, 5.0),
        _row("  python -I -S (bwrap + the same)", taken["exec"], taken["python"], 1.3, None),
        Row(
            "  fast: spawned and ended",
            f"{each:.0f}/s",
            target=">= 100/s",
            met=each >= 100,
            numbers={"per_s": each},
        ),
    ]


def _in_turn(ways: Mapping[str, Callable[[str], float]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, once in ways.items():
            time.sleep(REST)
            ms = once(f"{name}-{number}")
            if number >= 2:  # the first ones read files that the others find in memory
                taken[name].append(ms)
    return taken


def _spawn(caller: Caller, agent: Mapping[str, Any]) -> None:
    reply = json.loads(caller.call(SPAWN, json.dumps({"restart": "temporary", **agent}).encode()))
    if not reply.get("success"):
        raise MeasurementError(f"SPAWN of {agent['name']}: {reply}")


def _wait(caller: Caller, name: str) -> None:
    reply = json.loads(caller.call(WAIT, json.dumps({"name": name}).encode()))
    if reply.get("exit_code") != 0:
        raise MeasurementError(f"{name} ended badly: {reply}")


def _spawned(caller: Caller, agent: Mapping[str, Any]) -> float:
    """Milliseconds."""
    begun = time.monotonic_ns()
    _spawn(caller, agent)
    _wait(caller, agent["name"])
    called, *_ = caller.lines(agent["name"])
    return (int(called) - begun) / 1e6


def _beside(argv: Sequence[str]) -> float:
    begun = time.monotonic_ns()
    subprocess.run(argv, check=True, env={"PATH": "/usr/bin:/bin"})
    return (time.monotonic_ns() - begun) / 1e6


def _rate(caller: Caller, agent: Mapping[str, Any], rounds: int) -> float:
    """Each SPAWN waits for its reply, and the agents' ends only after every few: they end while others begin."""
    begun = time.monotonic()
    for first in range(0, rounds * 2, BATCH):
        names = [f"many-{number}" for number in range(first, first + BATCH)]
        for name in names:
            _spawn(caller, {"name": name, **agent})
        for name in names:
            _wait(caller, name)
    return rounds * 2 / (time.monotonic() - begun)


def _row(what: str, ours: Sequence[float], theirs: Sequence[float], most: float, most_ms: float | None) -> Row:
    beside, p50 = ratio(ours, theirs), median(ours)
    return Row(
        what,
        f"{p50:.2f} ms",
        f"{median(theirs):.2f} ms",
        str(beside),
        f"<= {most:g} x" + (f", <= {most_ms:g} ms" if most_ms else ""),
        beside.middle <= most and (most_ms is None or p50 <= most_ms),
        {"p50_ms": p50, "beside_ms": median(theirs), "ratio": beside.middle},
    )
