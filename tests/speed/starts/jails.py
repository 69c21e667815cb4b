"""From a SPAWN to the agent's first system call, through a whole kernel, and how many of them it makes a second.

Beside each stands bubblewrap with the nearest that it has to our walls, from its start to the end of a program that
does nothing; in turn, and on the one CPU that everything here shares. The agent notes the time when its call was
answered, so that the answer is in it too.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.speed.caller import Caller
from tests.speed.measure import events as measure_events
from tests.speed.place import Place
from tests.speed.proc import memory
from tests.speed.processes import MeasurementError, Server, pinned
from tests.speed.results import Result, Row
from tests.speed.starts.spawn import bwrap_argv

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
BATCH = 20  # at a time, where it is asked how many there can be
REMEMBERED = 1000  # ended agents that the kernel keeps
MIB = 1 << 20
ROWS = (
    Row("SPAWN, fast: to its first call", " ms", most=5, most_ratio=1.4, floor="bwrap + true"),
    Row("SPAWN, exec'ed python -I -S: to its first call", " ms", most_ratio=1.2, floor="bwrap + python"),
    Row("SPAWN, fast: spawned and ended, one CPU", "/s", least=60, more=True),
)
ENDED = (
    Row("SPAWN, fast: spawned and ended, all CPUs", "/s", least=80, more=True),
    Row(f"RSS that {REMEMBERED:,} spawned and ended agents leave", " MiB", most=6),
)


def jails(place: Place) -> Iterator[Result]:
    """The latencies, then the rate."""
    if shutil.which("bwrap") is None:
        raise MeasurementError("there is no bwrap to compare with: install the package bubblewrap")
    python = [os.path.realpath(sys.executable), "-I", "-S"]
    rounds = 20 if place.quick else 30
    with pinned(place.cpu), place.serve(files={"fast.py": FAST}) as kernel, Caller(kernel.socket) as caller:
        fast = _fast(kernel)
        ways: dict[str, Callable[[str], float]] = {
            "fast": lambda name: spawned(caller, {"name": name, **fast}),
            "true": lambda _: _beside(bwrap_argv("/bin/true")),
            "exec": lambda name: spawned(caller, {"name": name, "command": [*python, "-c", BARE]}),
            "python": lambda _: _beside(bwrap_argv(*python, "-c", "pass")),
        }
        taken = in_turn(ways, rounds)
        yield Result.of(ROWS[0], taken["fast"], taken["true"])
        yield Result.of(ROWS[1], taken["exec"], taken["python"])
        yield Result.of(ROWS[2], _rates(caller, fast, rounds // 5, "one-cpu"))


def ended(place: Place) -> Iterator[Result]:
    """On every CPU. The kernel remembers all that are counted.

    Those before them make it grow to its usual size, and its ring of events is full before.
    """
    with place.serve(files={"fast.py": FAST}, free=True) as kernel, Caller(kernel.socket) as caller:
        fast = _fast(kernel)
        _rates(caller, fast, 5, "warm")
        with measure_events.connect(kernel.socket) as emitter:
            measure_events.emit(emitter, measure_events.FULL)
        before = memory(kernel.pid).rss
        rates = _rates(caller, fast, REMEMBERED // BATCH, "counted")
        grown = (memory(kernel.pid).rss - before) / MIB
    yield Result.of(ENDED[0], rates)
    yield Result.of(ENDED[1], [grown])


def _fast(kernel: Server) -> dict[str, str]:
    return {"script": str(kernel.socket.parent / "fast.py"), "runtime": "fast"}


def in_turn(ways: Mapping[str, Callable[[str], float]], rounds: int) -> dict[str, list[float]]:
    """What each way returns, which is called with a new name in each round."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, once in ways.items():
            time.sleep(REST)
            ms = once(f"{name}-{number}")
            if number >= 2:  # the first ones read files that the others find in memory
                taken[name].append(ms)
    return taken


def _spawn(caller: Caller, agent: Mapping[str, Any]) -> None:
    caller.ask(SPAWN, {"restart": "temporary", **agent})


def _wait(caller: Caller, name: str) -> None:
    caller.ask(WAIT, {"name": name})


def spawned(caller: Caller, agent: Mapping[str, Any]) -> float:
    """Milliseconds from SPAWN until the first call of the agent is answered, which it prints and ends."""
    begun = time.monotonic_ns()
    _spawn(caller, agent)
    _wait(caller, agent["name"])
    called, *_ = caller.lines(agent["name"])
    return (int(called) - begun) / 1e6


def _beside(argv: Sequence[str]) -> float:
    begun = time.monotonic_ns()
    subprocess.run(argv, check=True, env={"PATH": "/usr/bin:/bin"})
    return (time.monotonic_ns() - begun) / 1e6


def _rates(caller: Caller, agent: Mapping[str, Any], batches: int, prefix: str) -> list[float]:
    """How many a second in each batch. Each SPAWN waits for its reply, and the ends of a batch's agents are awaited
    together: they end while others begin."""
    rates = []
    for batch in range(batches):
        begun = time.monotonic()
        names = [f"{prefix}-{batch}-{number}" for number in range(BATCH)]
        for name in names:
            _spawn(caller, {"name": name, **agent})
        for name in names:
            _wait(caller, name)
        rates.append(BATCH / (time.monotonic() - begun))
    return rates
