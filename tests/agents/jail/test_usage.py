"""What running agents use: for how long a reading is shared."""

import os
import time
from typing import Any, cast

import pytest

from agentos.agents.jail.jail import Jail
from agentos.agents.jail.usage import MAX_AGE, UsageReader
from agentos.agents.life.present import Life
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.llm.settings import Account
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Limits, Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from agentos.services.rate_limit import Rate
from tests.support.rights import Grants, Notebook

SLEEP = Program(("/bin/sleep", "600"), {}, "/")


async def test_a_reading_is_shared_while_it_is_new_by_a_clock_that_may_be_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller(2, "agent", "one", Table(()), Grants(), Notebook())
    agent = Agent(AgentSpec("one"), caller, ("root",), None, 0, None, (Account("one"),), Rate(1, 1))
    registry, read_at = Registry(), list[float]()
    registry.add(agent)
    reader = UsageReader(registry)
    spawner, began = Spawner.start(), time.time()
    try:
        sandbox = await spawner.spawn(plan_unjailed(SLEEP, probe.read_host(), Limits()))
        agent.life = Life(jail=Jail(sandbox, {}, Limits(), None, cast(Any, None)))
        for seconds in (0.0, MAX_AGE - 0.1, MAX_AGE + 0.1, 0.0):
            monkeypatch.setattr(time, "time", lambda seconds=seconds: began + seconds)
            read_at.append((await reader.read_running(None))[2].at - began)
        await sandbox.kill()
        os.close(sandbox.stdout)
        os.close(sandbox.stderr)
    finally:
        spawner.close()

    assert read_at == pytest.approx([0.0, 0.0, MAX_AGE + 0.1, 0.0])
