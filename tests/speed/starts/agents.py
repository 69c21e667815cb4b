"""Many agents under one tree: all start, answer, and stop without leaving anything behind."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.proc import family, kill_all
from tests.speed.processes import MeasurementError, Server
from tests.speed.results import Result, Row

AGENT = """\
import os, signal
from agentos_sdk import AgentOSClient

with AgentOSClient(os.environ["AGENTOS_SOCKET"]) as kernel:
    if kernel.echo("here") == "here":
        print("answered", flush=True)
    signal.pause()
"""


AGENTS = 200
PATIENCE = 60  # seconds
QUIET, DEAF, SHUTDOWN = 300, 12, 2  # deaf ones are killed after so many seconds
ROWS = (
    Row(f"{AGENTS} agents under one tree, exec'ed: all have answered", " s", most=4),
    Row(f"{AGENTS} agents under one tree: SIGTERM to the end, nothing left behind", " s"),
    Row(f"{AGENTS} agents under one tree, fast: all have answered", " s", most=2),
)
STOPS = (
    Row(f"{QUIET} quiet agents: SIGTERM to the end, nothing left behind", " s", most=2),
    Row(f"{DEAF} agents that ignore SIGTERM, shutdown = {SHUTDOWN} s: SIGTERM to the end", " s", most=3),
)


@contextlib.contextmanager
def _none_left_behind(kernel: Server) -> Iterator[None]:
    """What the kernel had started by the beginning must have ended by the end; what has not, we end."""
    started = family(kernel.pid)
    yield
    left = kill_all(started | family(kernel.pid))
    if left:
        raise MeasurementError(f"{len(left)} of {len(started)} processes outlived the kernel that started them")


def _until_answered(caller: Caller, names: Sequence[str], timeout: float) -> None:
    """One agent after the other, each asked until it has answered: the agents need the CPU more than we."""
    deadline = time.monotonic() + timeout
    for number, name in enumerate(names):
        while "answered" not in caller.lines(name):
            if time.monotonic() > deadline:
                raise MeasurementError(f"only {number} of {len(names)} agents had answered after {timeout:g} s")
            time.sleep(0.02)


def _run(place: Place, runtime: str) -> tuple[float, float]:
    """Seconds until all have answered, and from SIGTERM to the end."""
    names = [f"agent-{number}" for number in range(AGENTS)]
    common = {"script": "agent.py", "restart": "permanent", "runtime": runtime}
    children = [{"name": name, **common} for name in names]
    with place.serve(children, files={"agent.py": AGENT}, free=True, timeout=PATIENCE) as kernel:
        with Caller(kernel.socket) as caller:
            _until_answered(caller, names, PATIENCE)
            answered = time.monotonic() - kernel.started_at
            pids = {agent["pid"] for agent in caller.agents().values() if agent["name"] in names}
        if len(pids) != AGENTS:
            raise MeasurementError(f"{AGENTS} agents have {len(pids)} processes")
        with _none_left_behind(kernel):
            return answered, kernel.stop()


def agents(place: Place) -> Iterator[Result]:
    """On every CPU there is: nobody would start 200 programs on one."""
    rounds = range(1 if place.quick else 2)
    runs = [_run(place, "exec") for _ in rounds]
    for row, seconds in zip(ROWS, zip(*runs, strict=True), strict=False):
        yield Result.of(row, seconds)
    yield Result.of(ROWS[2], [_run(place, "fast")[0] for _ in rounds])


def stops(place: Place) -> Iterator[Result]:
    """On every CPU there is."""
    deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 1000; done"]
    rounds = range(1 if place.quick else 2)
    yield Result.of(STOPS[0], [_stop(place, QUIET, ["sleep", "100000"]) for _ in rounds])
    yield Result.of(STOPS[1], [_stop(place, DEAF, deaf, shutdown=f"{SHUTDOWN}s") for _ in rounds])


def _stop(place: Place, count: int, command: Sequence[str], **settings: str) -> float:
    children = [{"name": f"agent-{number}", "command": command, **settings} for number in range(count)]
    with place.serve(children, free=True, timeout=PATIENCE) as kernel, _none_left_behind(kernel):
        return kernel.stop()
