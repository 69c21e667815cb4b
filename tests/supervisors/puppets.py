"""Children whose strings a test holds: they live until told how to end, and note what happens to them."""

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import pytest
import trio
import trio.testing
from attrs import Factory, define

from supervisors import (
    ChildSpec,
    Ended,
    Exit,
    Ignore,
    NoProc,
    Observer,
    Refused,
    Report,
    SpecError,
    StartFailed,
    Supervisor,
    SupervisorSpec,
)

R = TypeVar("R", bound=Report)

settle = trio.testing.wait_all_tasks_blocked  # until everybody has done what follows at once


@define(eq=False)
class Puppet:
    """A Startable. ``plan`` holds what the next starts do: ``"fail"``, ``"ignore"``, ``"hang"`` or ``"ok"``."""

    name: str
    log: list[str] = Factory(list)
    plan: list[str] = Factory(list)
    stubborn: bool = False
    lives: int = 0
    next_life: trio.Event = Factory(trio.Event)  # set, and replaced, at each start that succeeds
    _told: trio.Event = Factory(trio.Event)
    _wish: Exit = Factory(lambda: Exit("normal"))

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        await self._try(self.plan.pop(0) if self.plan else "ok")
        self.lives += 1
        self._told = trio.Event()
        self.log.append(f"+{self.name}")
        self.next_life.set()
        self.next_life = trio.Event()
        task_status.started(f"{self.name}#{self.lives}")
        ending = "killed"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heed, stop)
                await self._told.wait()
                nursery.cancel_scope.cancel()
            ending = self._wish.reason
        finally:
            self.log.append(f"-{self.name} {ending}")
        raise Ended(self._wish)

    async def _try(self, plan: str) -> None:
        if plan == "fail":
            self.log.append(f"!{self.name}")
            raise RuntimeError(f"{self.name} does not start")
        if plan == "ignore":
            raise Ignore
        if plan == "hang":
            await trio.sleep_forever()

    async def _heed(self, stop: trio.Event) -> None:
        await stop.wait()
        if not self.stubborn:
            self.end(Exit("shutdown"))

    def end(self, wish: Exit) -> None:
        """Its present life ends so, as soon as it runs again."""
        self._wish = wish
        self._told.set()

    async def ends(self, wish: Exit) -> None:
        """It ends so, and everybody has done what follows from that at once."""
        self.end(wish)
        await settle()

    async def crashes(self) -> None:
        await self.ends(Exit("crash", ValueError(self.name)))


def puppets(names: str) -> tuple[list[str], list[Puppet]]:
    """A log, and a puppet for each letter of ``names`` that writes to it."""
    log: list[str] = []
    return log, [Puppet(name, log) for name in names]


def specs(children: Sequence[Puppet], **terms: object) -> list[ChildSpec]:
    """All on the same terms, in this order."""
    return [ChildSpec(child.name, child, **terms) for child in children]  # type: ignore[arg-type]


class Owner:
    """Runs a supervisor to its end, and keeps what it ended with."""

    def __init__(self, spec: SupervisorSpec, observe: Observer | None = None) -> None:
        self.reports: list[Report] = []
        self.supervisor = Supervisor(spec, observe=observe or self.reports.append)
        self.scope = trio.CancelScope()
        self.error: Exception | None = None

    async def run(self, *, task_status: trio.TaskStatus[Supervisor]) -> None:
        with self.scope:
            try:
                await self.supervisor.run(task_status=task_status)
            except Exception as error:
                self.error = error

    def told(self, kind: type[R]) -> list[R]:
        """The reports of one kind, in order."""
        return [report for report in self.reports if isinstance(report, kind)]


async def start_owner(nursery: trio.Nursery, spec: SupervisorSpec) -> Owner:
    """An owner whose supervisor is up."""
    owner = Owner(spec)
    await nursery.start(owner.run)
    return owner


async def code_of(call: Awaitable[object]) -> str:
    """OTP's name for why a call is refused; it has to be."""
    with pytest.raises((Refused, NoProc, StartFailed, SpecError)) as refused:
        await call
    return refused.value.code
