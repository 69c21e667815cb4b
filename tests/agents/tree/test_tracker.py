"""What the reports of supervisors make of the agents' states, and which events they publish."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.life.lifecycle import AT_START, State, Step, Wanted
from agentos.agents.registry import Agent, Registry
from agentos.agents.tree.tracker import Tracker
from agentos.agents.waking.schedule import Schedule
from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentOver,
    AgentReady,
    AgentRestarting,
    AgentState,
    AgentStopped,
    Event,
)
from agentos_sdk.values import End
from supervisors import Exit
from supervisors.exits import IntensityExceeded
from supervisors.reports import ChildDeclined, ChildEnded, ChildTerminated, Report, RestartScheduled, SupervisorGaveUp
from supervisors.strategy import Restart
from tests.agents.test_registry import agent

CRASH, NORMAL = Exit("crash"), Exit("normal")


def tracked(*agents: Agent) -> tuple[Tracker, list[Event]]:
    """A tracker of running agents, and the events that it publishes from now on."""
    published = list[Event]()
    tracker = Tracker(Registry(published.append))
    for one in agents:
        tracker.add_agent(one, one.path)
        tracker.registry.change(one, AgentReady(one.id, one.name, 77))
    published.clear()
    return tracker, published


def run(tracker: Tracker, *reported: Report) -> None:
    for report in reported:
        tracker.observe(report)


def test_an_agent_that_crashed_waits_for_its_restart() -> None:
    one = agent("a")
    tracker, published = tracked(one)
    one.end = End(3, None, "exit status 3")

    run(tracker, ChildEnded(("root",), "a", CRASH, 1.0), RestartScheduled(("root",), "a", 0.5, 2))

    assert one.state is State.BACKING_OFF
    assert published == [
        AgentExited(one.id, "a", "exit status 3"),
        AgentState(one.id, "a", "exited"),
        AgentRestarting(one.id, "a", 0.5, 2),
        AgentState(one.id, "a", "backing_off"),
    ]


def test_an_agent_that_is_stopped_as_it_crashes_stays_stopped() -> None:
    one = agent("a")
    one.spawner = None  # it is declared
    tracker, _ = tracked(one)
    one.wish.stop("operator")
    one.dismiss()

    run(tracker, ChildEnded(("root",), "a", CRASH, 1.0), RestartScheduled(("root",), "a", 0.5, 2))

    assert one.state is State.STOPPED


def test_a_declined_start_of_an_agent_that_restart_is_about_to_start_changes_nothing() -> None:
    one = agent("a")
    one.spawner = None
    one.wish.stop("operator")
    tracker, published = tracked(one)
    tracker.finish(one)
    before = list(published)
    one.renew()
    one.wish.release()  # as RESTART does before it starts the agent

    run(tracker, ChildDeclined(("root",), "a"), ChildEnded(("root",), "a", NORMAL, 0.0))

    assert (one.state, published) == (State.STOPPED, before)


def test_a_declined_start_of_an_agent_that_was_given_up_changes_nothing() -> None:
    one = agent("a")
    one.spawner = None
    tracker, published = tracked(one)
    run(tracker, ChildEnded(("root",), "a", CRASH, 1.0))
    run(tracker, SupervisorGaveUp(("root",), Exit("shutdown", IntensityExceeded("a", CRASH, 1, 5.0))))
    before = list(published)
    one.wish.stop("operator")  # as its group begins anew

    run(tracker, ChildTerminated(("root",), "a", NORMAL, 0.0))

    assert (one.state, published) == (State.FAILED, before)


def test_a_supervisor_that_gave_up_names_the_agent_that_failed_last() -> None:
    one = agent("a")
    tracker, published = tracked(one)
    one.end = End(3, None, "exit status 3")
    failure = Exit("shutdown", IntensityExceeded("a", CRASH, 1, 5.0))

    run(tracker, ChildEnded(("root",), "a", CRASH, 1.0), SupervisorGaveUp(("root",), failure))

    assert one.state is State.FAILED
    _, _, failed, _, escalated = published
    assert isinstance(failed, AgentFailed)
    assert failed.reason.endswith("; the last time: a: exit status 3")
    assert escalated == AgentEscalated("root", failed.reason, one.id, "a", one.spawner)


def test_a_group_that_made_a_supervisor_give_up_is_an_escalation_without_an_agent() -> None:
    tracker, published = tracked()

    run(tracker, SupervisorGaveUp(("root",), Exit("shutdown", IntensityExceeded("team", CRASH, 1, 5.0))))

    [escalated] = published
    assert isinstance(escalated, AgentEscalated)
    assert (escalated.supervisor, escalated.agent_id) == ("root", None)


def test_a_declared_agent_is_over_when_its_supervisor_will_not_restart_it() -> None:
    lasting = [declared("a", "permanent", CRASH), declared("b", "transient", CRASH)]
    over = [declared("c", "transient", NORMAL), declared("d", "temporary", CRASH)]

    assert [events[-1] for one, events in lasting] == [AgentState(one.id, one.name, "exited") for one, _ in lasting]
    assert [events[-1] for one, events in over] == [AgentOver(one.id, one.name) for one, _ in over]
    assert [one.over.is_set() for one, _ in (*lasting, *over)] == [False, False, True, True]


def declared(name: str, restart: Restart, exit: Exit) -> tuple[Agent, Sequence[Event]]:
    """A declared agent after it has ended by itself with ``exit``, and what was published about that."""
    one = agent(name, restart=restart)
    one.spawner, one.end = None, End(1, None, "x")
    tracker, published = tracked(one)
    run(tracker, ChildEnded(("root",), name, exit, 1.0))
    return one, published


OPERATIONS = ("stop", "dismiss", "release", "wake", "start", "crash", "end")


@given(st.booleans(), st.lists(st.sampled_from(OPERATIONS), max_size=12))
def test_an_agent_becomes_what_is_wished_of_it_whatever_has_happened(waits: bool, operations: list[str]) -> None:
    one = agent("a", restart="transient", schedule=Schedule(cron="0 3 * * *") if waits else None)
    one.spawner = None
    tracker, _ = tracked(one)
    for operation in operations:
        lives, wanted = one.lives, one.wanted
        apply(operation, one, tracker)

        assert wanted is not Wanted.STOP or one.lives == lives
        if one.over.is_set():
            assert one.wanted is not Wanted.END
            assert one.wanted is not Wanted.STOP or one.state is State.STOPPED
            assert one.state is not State.WAITING or one.spec.waits

    for operation in ("end", "release", "wake", "start"):  # there is always a way back
        apply(operation, one, tracker)
    assert one.state is State.RUNNING


def apply(operation: str, one: Agent, tracker: Tracker) -> None:
    """What the calls, the supervisor or the program of a declared agent do at this moment."""
    match operation:
        case "stop":
            one.wish.stop("operator")
            one.dismiss()
            if one.over.is_set():
                tracker.registry.change(one, AgentStopped(one.id, "a", "operator"))
        case "dismiss":
            one.dismiss()
        case "release":
            one.wish.release()
        case "wake" if one.wanted is Wanted.WAIT:
            one.wish.wake()
        case "start" if one.state is not State.RUNNING and AT_START[one.wanted] is Step.REST:
            tracker.rest(one)
        case "start" if one.state is not State.RUNNING and AT_START[one.wanted] is Step.BEGIN:
            tracker.registry.begin_life(one)
            one.lives += 1
            tracker.registry.change(one, AgentReady(one.id, "a", 7))
        case "crash" | "end" if one.state is State.RUNNING:
            one.end = End(int(operation == "crash"), None, "x")
            tracker.observe(ChildEnded(("root",), "a", CRASH if operation == "crash" else NORMAL, 1.0))
