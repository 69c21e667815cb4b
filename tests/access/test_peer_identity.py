import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest
import trio
import trio.testing

from agentos.access import peer_identity
from agentos.access.peer_identity import Peers, find_agent_pid
from agentos.agents.registry import Registry
from agentos.kernel.wire.listener import Peer
from agentos_sdk.errors import PermissionDenied
from tests.support.wire import PATIENCE

# Two generations: the pids of a child and of its child.
CHAIN = (
    "import os, sys\nprint(os.getpid(), flush=True)\nif os.fork(): os.wait()\nprint(os.getpid(), flush=True)\ninput()"
)


@pytest.fixture
def chain() -> Iterator[tuple[int, int]]:
    with subprocess.Popen([sys.executable, "-c", CHAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), int(process.stdout.readline())
        process.communicate()


def test_the_nearest_agent_counts(chain: tuple[int, int]) -> None:
    parent, child = chain

    assert find_agent_pid(child, frozenset({parent, child})) == child
    assert find_agent_pid(child, frozenset({parent})) == parent


def test_a_descendant_of_the_kernel_that_belongs_to_no_agent_is_unknown(chain: tuple[int, int]) -> None:
    assert find_agent_pid(chain[1], frozenset()) is None


def test_a_process_that_does_not_descend_from_the_kernel_is_the_operator() -> None:
    assert find_agent_pid(os.getppid(), frozenset()) == 0
    assert find_agent_pid(0, frozenset()) == 0  # in no pid namespace that we see


def test_a_process_that_has_gone_already_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_identity, "parent_of", lambda pid: None)

    assert find_agent_pid(4711, frozenset()) is None


def test_an_ancestor_that_goes_meanwhile_sends_the_walk_back_to_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    answers = iter([4712, None, own])
    monkeypatch.setattr(peer_identity, "parent_of", lambda pid: next(answers))

    assert find_agent_pid(4711, frozenset()) is None


class Readings:
    """The real reading of /proc, in which each call is noted; it goes on when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        real = peer_identity.find_agent_pids

        def noting(pids: tuple[int, ...], agents: frozenset[int]) -> Mapping[int, int | None]:
            self.asked.append(pids)
            assert self.may_go_on.wait(PATIENCE)
            return real(pids, agents)

        monkeypatch.setattr(peer_identity, "find_agent_pids", noting)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    return Readings(monkeypatch)


def of_us(pid: int) -> Peer:
    return Peer(pid, os.geteuid())


async def test_what_needs_no_look_at_proc_takes_no_thread(readings: Readings) -> None:
    known = Peers(Registry())

    assert await known.identify(of_us(os.getpid())) is None
    assert await known.identify(of_us(0)) is None, "a process of no PID namespace that we see is none of ours"
    with pytest.raises(PermissionDenied, match="this socket is for uid"):
        await known.identify(Peer(os.getppid(), os.geteuid() + 1))

    assert readings.asked == []


async def test_1500_connections_do_not_take_1500_threads(readings: Readings, chain: tuple[int, int]) -> None:
    known, refused = Peers(Registry()), []
    readings.may_go_on.clear()

    async def connect(pid: int) -> None:
        try:
            assert await known.identify(of_us(pid)) is None
        except PermissionDenied:
            refused.append(pid)

    async with trio.open_nursery() as nursery:
        for _ in range(500):
            for pid in (os.getppid(), *chain):
                nursery.start_soon(connect, pid)
        await trio.testing.wait_all_tasks_blocked()
        readings.may_go_on.set()

    assert sorted(refused) == sorted(chain * 500), "they descend from us, the operator doesn't"
    assert len(readings.asked) == 2, "one for whoever came first, and one for all that came meanwhile"


async def test_an_answer_is_not_shared_with_callers_that_came_after_it_was_read(readings: Readings) -> None:
    """The pid may be another process's by then."""
    known = Peers(Registry())
    readings.may_go_on.clear()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(known.identify, of_us(os.getppid()))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(known.identify, of_us(os.getppid()))
        await trio.testing.wait_all_tasks_blocked()
        readings.may_go_on.set()

    assert readings.asked == [(os.getppid(),)] * 2


async def test_where_no_thread_can_be_had_all_that_wait_hear_it_and_the_next_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, heard = Peers(Registry()), []

    def no_thread(pids: tuple[int, ...], agents: frozenset[int]) -> Mapping[int, int | None]:
        raise RuntimeError("can't start new thread")

    async def connect() -> None:
        try:
            await known.identify(of_us(os.getppid()))
        except RuntimeError as error:
            heard.append(str(error))

    with monkeypatch.context() as broken:
        broken.setattr(peer_identity, "find_agent_pids", no_thread)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connect)

    assert heard == ["can't start new thread"] * 5
    assert await known.identify(of_us(os.getppid())) is None


async def test_a_cancelled_caller_takes_no_answer_from_others_that_wait_for_the_same(readings: Readings) -> None:
    known, answers = Peers(Registry()), []
    readings.may_go_on.clear()

    async def first(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await known.identify(of_us(os.getppid()))

    async def second() -> None:
        answers.append(await known.identify(of_us(os.getppid())))

    async with trio.open_nursery() as nursery:
        scope = await nursery.start(first)
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        readings.may_go_on.set()

    assert answers == [None]
