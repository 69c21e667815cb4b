"""A running queue of approvals with an operator who decides, and callers that ask."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from agentos.database import Database, open_database
from agentos.database_file import Schemas
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question, Right
from agentos.kernel.table import Table
from agentos.permissions.approvals import answers
from agentos.permissions.approvals import entries as approval_entries
from agentos.permissions.approvals.answers import Answers
from agentos.permissions.approvals.approvals import Approvals, ApprovalSettings
from agentos.permissions.approvals.entries import Pending
from agentos.permissions.approvals.records import Remember
from agentos.services.events import Event
from agentos_sdk.errors import (
    ApprovalRequired,
    CallError,
)
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

SCHEMAS = {"approvals": approval_entries.TABLES, "answers": answers.TABLES}
RULE = "ask read /data/** (here)"
HOUR = 3600.0


@define
class Desk:
    """A running queue, and the operator who decides."""

    queue: Approvals
    database: Database
    audit: Notebook
    events: list[Event]
    nursery: trio.Nursery
    results: list[str] = field(factory=list)

    def ask(self, caller: Caller, question: Question, name: str = "", timeout: float = HOUR) -> None:
        """Have a call wait; its outcome is added to ``results``: ``name: allowed``, or a code."""

        async def wait() -> None:
            try:
                await self.queue.wait(caller, question, timeout)
                allowed = self.queue.take(caller, question)
                self.results.append(f"{name}: {'allowed' if allowed else 'nothing'}")
            except CallError as error:
                self.results.append(f"{name}: {error.code}")

        self.nursery.start_soon(wait)

    async def listed(self, count: int = 1) -> list[Pending]:
        """The list once it has so many entries."""
        with trio.fail_after(PATIENCE):
            while len(found := self.queue.pending()) != count:
                await self.queue.wait_for_news()
        return list(found)

    async def wait_until_asked_by(self, count: int, number: int) -> None:
        """Return once so many calls wait for this entry."""
        with trio.fail_after(PATIENCE):
            while self.queue._entries[number].changed.statistics().tasks_waiting < count:
                await trio.sleep(0.001)

    async def decide(
        self,
        number: int,
        allow: bool = True,
        remember: Remember = "once",
        seconds: float | None = None,
        reason: str | None = None,
        any_path: bool = False,
    ) -> None:
        await self.queue.decide(OPERATOR, number, allow, remember, seconds, reason, any_path=any_path)

    async def approve(self, caller: Caller, question: Question, **more: object) -> None:
        """Allow a call that doesn't wait any more."""
        with pytest.raises(ApprovalRequired):
            await self.queue.wait(caller, question, 0.0)
        [entry] = await self.listed()
        await self.decide(entry.id, **more)  # type: ignore[arg-type]


def caller(number: int, name: str, kind: str = "agent") -> Caller:
    made = Caller(number, kind, name, Table(()), Grants(asked=["read"]), Notebook())  # type: ignore[arg-type]
    made.family = f"{kind} {number}"
    return made


OPERATOR = Caller(1, "operator", "operator#1", Table(()), Grants(), Notebook(), uid=1000)
ANN, BOB = caller(2, "ann"), caller(3, "bob")


def question(path: str = "/data/x", rule: str = RULE, digest: str = "", agent: int | None = None) -> Question:
    asked = (Right("read", path, agent), Decision("ask", rule, f"READ {path}: a person has to agree"))
    return Question("READ", path, (asked,), digest or path, f"READ {path}")


def lasting_name(caller: Caller) -> str | None:
    return None if caller.name.startswith("guest#") else caller.name


@asynccontextmanager
async def opened(
    place: Path, audit: Notebook | None = None, schemas: Schemas = SCHEMAS, **settings: Any
) -> AsyncIterator[Desk]:
    """A queue in a database, as it is after a start of the kernel."""
    log, events = audit or Notebook(), list[Event]()
    async with open_database(place / "db", schemas) as database, trio.open_nursery() as nursery:
        known = Answers(database, {2: "ann", 3: "bob"}.get)
        queue = Approvals(ApprovalSettings(**settings), database, log, known, events.append, lasting_name)
        await queue.load()
        nursery.start_soon(queue.serve)
        await wait_all_tasks_blocked()
        yield Desk(queue, database, log, events, nursery)
        nursery.cancel_scope.cancel()
