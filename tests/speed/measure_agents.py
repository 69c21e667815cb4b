"""Many agents under one tree: all start, answer, and stop without leaving anything behind."""

import contextlib
import time
from collections.abc import Iterator

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.proc import family, kill_all
from tests.speed.processes import MeasurementError, Server
from tests.speed.results import Row

AGENT = """\
import os, signal
from agentos_sdk import AgentOSClient

with AgentOSClient(os.environ["AGENTOS_SOCKET"]) as kernel:
    if kernel.echo("here") == "here":
        print("answered", flush=True)
    signal.pause()
"""


@contextlib.contextmanager
def _none_left_behind(kernel: Server) -> Iterator[None]:
    """What the kernel had started by the beginning must have ended by the end; what has not, we end."""
    started = family(kernel.pid)
    yield
    left = kill_all(started | family(kernel.pid))
    if left:
        raise MeasurementError(f"{len(left)} of {len(started)} processes outlived the kernel that started them")


def _until_answered(caller: Caller, names: set[str], timeout: float) -> None:
    """Asked four times a second only: the agents need the CPU more than we."""
    deadline = time.monotonic() + timeout
    waiting = set(names)
    while waiting:
        known = caller.agents()
        waiting -= {name for name in waiting & known.keys() if "answered" in caller.lines(name)}
        if waiting and time.monotonic() > deadline:
            raise MeasurementError(f"{len(waiting)} of {len(names)} agents had not answered after {timeout:g} s")
        if waiting:
            time.sleep(0.25)


def agents(place: Place) -> list[Row]:
    """On every CPU there is: nobody would start 200 programs on one."""
    n = 40 if place.quick else 200
    timeout = 15 if place.quick else 60
    names = [f"agent-{number}" for number in range(n)]
    children = [{"name": name, "script": "agent.py", "restart": "permanent"} for name in names]
    with place.serve(children, files={"agent.py": AGENT}, free=True, timeout=timeout) as kernel:
        with Caller(kernel.socket) as caller:
            _until_answered(caller, set(names), timeout)
            answered = time.monotonic() - kernel.started_at
            pids = {agent["pid"] for agent in caller.agents().values() if agent["name"] in names}
        if len(pids) != n:
            raise MeasurementError(f"{n} agents have {len(pids)} processes")
        with _none_left_behind(kernel):
            stopped = kernel.stop()
    return [
        Row(
            f"{n} agents under one tree: all have answered",
            f"{answered:.2f} s",
            target="all, cleanly",
            met=True,
            numbers={
                "answered_s": answered,
                "each_ms": answered / n * 1000,
                "ready_s": kernel.ready_at - kernel.started_at,
            },
        ),
        Row(
            "  SIGTERM to the end, nothing left behind",
            f"{stopped:.2f} s",
            target="status 0",
            met=True,
            numbers={"stopped_s": stopped, "each_ms": stopped / n * 1000},
        ),
    ]
