"""Callers and agents for tests of what needs only a few of their parts."""

import itertools
from typing import Any

from agentos.access.callers import Callers
from agentos.access.sets import SetReader
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.llm.settings import Account
from agentos.services.http.secrets import Secrets
from agentos.services.mail.mailboxes import Mailboxes
from agentos.services.rate_limit import Rate
from tests.permissions.strategies import NAMES
from tests.support.rights import Grants, Notebook

UNUSED: Any = None


def make_callers(registry: Registry) -> Callers:
    """Without a model, approvals and calls."""
    secrets = Secrets()
    made = Callers(
        registry=registry,
        mail=Mailboxes(),
        line=UNUSED,
        audit=Notebook(),
        approvals=UNUSED,
        background=UNUSED,
        secrets=secrets,
        sets=SetReader({}, NAMES, NAMES, secrets, priced=False),
        kernel_account=Account("kernel"),
        default_budget=(),
        ids=itertools.count(1),
        kernels=(),
    )
    made.tables.serve(())
    return made


def add_agent(
    registry: Registry,
    number: int,
    name: str,
    parent: Agent | None = None,
    group: str = "root",
    guest: str | None = None,
) -> Agent:
    """An agent that the operator, its ``parent`` or a ``guest`` has spawned."""
    caller = Caller(number, "agent", name, Table((), None), Grants(), Notebook())
    path, spawner = ((group,), None) if parent is None else ((group, name), 1)
    above = parent.queue_path if parent is not None else (Account("kernel"),)
    account = Account(name if parent is None else f"{above[-1].name}/{name}")
    agent = Agent(AgentSpec(name), caller, path, parent, spawner, guest, (*above, account), Rate(1, 1))
    registry.add(agent)
    return agent
