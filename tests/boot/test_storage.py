import os
from pathlib import Path

import trio

from agentos.agents.registry import Registry
from agentos.boot.access import Access
from agentos.boot.host import Host
from agentos.boot.storage import bound_storage
from agentos.config.schema import StorageTable
from agentos.services.event_log.ring import EventLog
from agentos.services.events import AgentOutput
from agentos.services.logs.log import Logs, LogSettings, open_logs
from tests.access.making import UNUSED, add_agent, make_callers

ALL = 1 << 40  # bytes
HOST = Host(UNUSED, UNUSED, UNUSED, None, None, Path("state"), "", "")


async def write(logs: Logs, *names: str) -> None:
    logs.take_kernel_text("ready")
    for number, name in enumerate(names, 2):
        logs.take_event(AgentOutput(number, name, "stdout", "x", 1000.0))
    while any(source.waiting or source.writing for source in logs.sources.values()):
        await trio.sleep(0.01)


async def test_logs_of_agents_that_have_ended_go_first_and_the_kernels_own_of_former_runs_last(tmp_path: Path) -> None:
    registry = Registry()
    add_agent(registry, 2, "runs")
    add_agent(registry, 3, "ended").over.set()
    async with open_logs(tmp_path, LogSettings()) as logs:
        await write(logs, "runs", "former")
    async with open_logs(tmp_path, LogSettings()) as logs:
        await write(logs, "runs", "ended", "forgotten")
        access = Access(UNUSED, EventLog(), UNUSED, UNUSED, UNUSED, UNUSED, logs, make_callers(registry))
        left = []
        for step in bound_storage(StorageTable(), HOST, access).order:
            await step.drop(ALL)
            left.append(sorted(name.removesuffix(".1.jsonl") for name in os.listdir(tmp_path)))

    of_running = ["kernel.1", "kernel.2", "runs.1", "runs.2"]
    assert left == [of_running, of_running, ["kernel.2", "runs.1", "runs.2"]]
