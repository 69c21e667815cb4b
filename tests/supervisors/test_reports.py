import logging

import pytest
import trio

from supervisors import ChildSpec, Exit, Report, SupervisorSpec
from supervisors.reports import (
    ChildDeclined,
    ChildEnded,
    ChildStarted,
    ChildStartFailed,
    ChildTerminated,
    Restarting,
    SupervisorEnded,
    SupervisorGaveUp,
)
from tests.supervisors.puppets import Owner, puppets, specs, start_owner


async def test_reports_name_the_way_from_the_root(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    inner = ChildSpec("m", SupervisorSpec([ChildSpec("n", SupervisorSpec(specs([a])))]))
    owner = await start_owner(nursery, SupervisorSpec([inner]))

    assert [(report.path, report.id) for report in owner.told(ChildStarted)] == [
        (("root", "m", "n"), "a"),
        (("root", "m"), "n"),
        (("root",), "m"),
    ]
    owner.supervisor.stop()


async def test_a_child_that_ended_by_itself_and_one_that_was_stopped_are_told_apart(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    _, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b]), strategy="one_for_all"))
    await trio.sleep(3)

    await a.crashes()

    assert [(report.id, report.exit.reason, report.uptime) for report in owner.told(ChildEnded)] == [("a", "crash", 3)]
    assert [(report.id, report.exit.reason) for report in owner.told(ChildTerminated)] == [("b", "shutdown")]
    assert [(report.id, report.group) for report in owner.told(Restarting)] == [("a", ("a", "b"))]
    owner.supervisor.stop()


async def test_failed_and_declined_starts_are_reported(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a, b) = puppets("ab")
    owner = await start_owner(nursery, SupervisorSpec(specs([a, b]), intensity=9))
    a.plan, b.plan = ["fail"], ["ignore"]

    await a.crashes()
    await b.crashes()

    assert [(report.id, str(report.error)) for report in owner.told(ChildStartFailed)] == [("a", "a does not start")]
    assert [report.id for report in owner.told(ChildDeclined)] == ["b"]
    owner.supervisor.stop()


async def test_giving_up_is_reported_before_the_end(autojump_clock: object, nursery: trio.Nursery) -> None:
    _, (a,) = puppets("a")
    owner = await start_owner(nursery, SupervisorSpec(specs([a]), intensity=0))

    await a.crashes()

    assert isinstance(owner.reports[-2], SupervisorGaveUp)
    assert isinstance(owner.reports[-1], SupervisorEnded)
    assert owner.reports[-1].exit == owner.supervisor.exit


async def test_an_observer_that_raises_does_the_tree_no_harm(
    autojump_clock: object, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    log, (a,) = puppets("a")

    def observe(report: Report) -> None:
        raise ZeroDivisionError

    owner = Owner(SupervisorSpec(specs([a]), intensity=9), observe)
    with caplog.at_level(logging.ERROR, "supervisors"):
        await nursery.start(owner.run)
        await a.crashes()

    assert log == ["+a", "-a crash", "+a"]
    assert "an observer failed on ChildStarted" in caplog.text
    owner.supervisor.stop()
    assert await owner.supervisor.wait() == Exit("shutdown")
