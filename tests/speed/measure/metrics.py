"""What it costs to sample many agents: CPU time of a kernel during the rounds of its sampler, while all agents sleep.

The kernel runs in a process in which the sampler's round is wrapped: it notes the CPU time that the whole process used
meanwhile. That is an upper bound, as other tasks work at the same time.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve

from agentos.services.metrics.sampler import Sampler
from agentos.services.metrics.schedule import INTERVAL
from agentos.userland.cli.main import cli
from agentos_sdk import AgentOSClient
from tests.speed.place import Place
from tests.speed.processes import MeasurementError
from tests.speed.results import Result, Row

AGENTS = 500
PATIENCE = 120.0  # seconds until all of them run, and for the rounds
ROUNDS = 2
ROWS = (Row(f"{AGENTS} sleeping agents: CPU time to sample them", " % of a core", most=2),)


def metrics(place: Place) -> Iterator[Result]:
    notes = place.directory / "samples"
    kernel = evolve(place, kernel=[sys.executable, "-m", "tests.speed.measure.metrics", str(notes), "run"])
    children = [{"name": f"sleeper-{number}", "command": ["sleep", "100000"]} for number in range(AGENTS)]
    with (
        kernel.serve(children, free=True, timeout=PATIENCE) as server,
        AgentOSClient(str(server.socket), timeout=PATIENCE) as client,
    ):
        running = sum(agent["state"] == "running" for agent in client.list_agents())
        if running != AGENTS:
            raise MeasurementError(f"only {running} of {AGENTS} agents run")
        first = len(read_notes(notes)) + 1  # not the next one: the start's work may not be over
        deadline = time.monotonic() + PATIENCE
        while len(found := read_notes(notes)[first:]) < ROUNDS:
            if time.monotonic() > deadline:
                raise MeasurementError(f"only {len(found)} rounds in {PATIENCE:g} s")
            time.sleep(0.2)
    yield Result.of(ROWS[0], [seconds / INTERVAL * 100 for seconds in found])


def read_notes(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_kernel(notes: str) -> None:
    """Run ``agentos``, and note the CPU time of each round of samples in a file."""
    sample = Sampler.sample

    async def measured(self: Sampler, with_disk: bool = False) -> None:
        before = time.process_time()
        await sample(self, with_disk)
        with open(notes, "a") as file:  # noqa: ASYNC230 - a line each five seconds
            print(time.process_time() - before, file=file)

    Sampler.sample = measured  # type: ignore[method-assign]
    cli()


if __name__ == "__main__":
    notes_file = sys.argv.pop(1)
    sys.argv[0] = "agentos"
    run_kernel(notes_file)
