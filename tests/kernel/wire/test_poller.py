"""One epoll for all that wait for input: fair to all, and an error, a hang-up or a cancelled wait concerns one only."""

import contextlib
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

from agentos.kernel.wire.poller import BATCH, MAX_PASSED, TURN_SECONDS, Poller
from tests.support.wire import PATIENCE

Pair = tuple[socket.socket, socket.socket]
Pairs = Callable[[], Pair]


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    """``pairs()``: our non-blocking socket and its peer, closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make() -> Pair:
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            ours.setblocking(False)
            return ours, theirs

        yield make


def reader(sock: socket.socket) -> Callable[[], bytes | None]:
    """Reads once; None if there is nothing to read."""

    def read() -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            return sock.recv(100)
        return None

    return read


def spend(seconds: float) -> None:
    """Use the CPU for that long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def test_a_wait_goes_on_until_there_is_a_result(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    seen = b""

    def read() -> bytes | None:
        nonlocal seen
        seen += ours.recv(1)
        return seen if seen.endswith(b"\n") else None

    theirs.sendall(b"one\ntwo\n")

    assert await poller.wait(ours.fileno(), read) == b"one\n"
    seen = b""
    assert await poller.wait(ours.fileno(), read) == b"two\n"
    poller.forget(ours.fileno())


async def test_an_error_is_raised_where_it_is_waited_and_nowhere_else(pairs: Pairs, poller: Poller) -> None:
    (wrong, its_peer), (right, peer) = pairs(), pairs()

    def fail() -> bytes | None:
        raise ZeroDivisionError("a bug in this connection")

    async with trio.open_nursery() as nursery:
        result: list[bytes] = []

        async def wait() -> None:
            result.append(await poller.wait(right.fileno(), reader(right)))

        nursery.start_soon(wait)
        its_peer.sendall(b"x")
        with pytest.raises(ZeroDivisionError, match="this connection"):
            await poller.wait(wrong.fileno(), fail)
        peer.sendall(b"still served")

    assert result == [b"still served"]


async def test_a_cancelled_wait_leaves_nothing_behind(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    calls = []

    with trio.move_on_after(0) as scope:
        await poller.wait(ours.fileno(), lambda: calls.append("of the cancelled wait"))
    theirs.sendall(b"later")

    assert scope.cancelled_caught
    assert await poller.wait(ours.fileno(), reader(ours)) == b"later"
    assert not calls


@pytest.mark.parametrize("error", [None, ValueError("as well")])
async def test_a_read_may_cancel_the_task_that_waits_for_it(
    pairs: Pairs, poller: Poller, error: Exception | None
) -> None:
    ours, theirs = pairs()

    def read() -> bool:
        scope.cancel()
        if error is not None:
            raise error
        return True

    theirs.sendall(b"x")
    with trio.CancelScope() as scope:
        await poller.wait(ours.fileno(), read)

    assert scope.cancelled_caught
    assert await poller.wait(ours.fileno(), reader(ours)) == b"x"


async def test_a_hang_up_that_no_task_waits_for_is_reported_once(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    theirs.sendall(b"bye")
    assert await poller.wait(ours.fileno(), reader(ours)) == b"bye"

    theirs.close()

    with trio.fail_after(PATIENCE):
        await trio.testing.wait_all_tasks_blocked(0.01)  # never, if the poller is woken again and again
    assert await poller.wait(ours.fileno(), reader(ours)) == b""


async def test_a_file_that_is_closed_without_being_forgotten_harms_no_other(pairs: Pairs, poller: Poller) -> None:
    (closed, its_peer), (ours, theirs) = pairs(), pairs()
    its_peer.sendall(b"x")
    assert await poller.wait(closed.fileno(), reader(closed)) == b"x"

    number = closed.detach()
    os.close(number)
    poller.forget(number)
    theirs.sendall(b"served")

    assert await poller.wait(ours.fileno(), reader(ours)) == b"served"


async def test_a_report_for_a_closed_file_does_not_concern_the_next_one_with_its_descriptor(
    pairs: Pairs, poller: Poller
) -> None:
    for _ in range(20):  # Trio may run the poller or the task of the new file first
        await close_one_that_is_reported(poller, pairs(), pairs(), pairs())


async def close_one_that_is_reported(poller: Poller, first: Pair, old: Pair, new: Pair) -> None:
    scope = trio.CancelScope()

    def replace_old() -> bool:
        scope.cancel()
        poller.forget(old[0].fileno())
        os.dup2(new[0].fileno(), old[0].fileno())
        spend(2 * TURN_SECONDS)  # so that the report for the old file is served in the next turn
        return True

    async def wait_for_old() -> None:
        with scope:
            await poller.wait(old[0].fileno(), reader(old[0]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_old)
        await trio.testing.wait_all_tasks_blocked()
        first[1].sendall(b"x")
        old[1].sendall(b"for the old file")
        await poller.wait(first[0].fileno(), replace_old)
        nursery.start_soon(send_when_all_wait, new[1], b"for the new file")
        assert await poller.wait(old[0].fileno(), reader(old[0])) == b"for the new file"
    poller.forget(first[0].fileno())
    poller.forget(old[0].fileno())


async def send_when_all_wait(peer: socket.socket, data: bytes) -> None:
    await trio.testing.wait_all_tasks_blocked()
    peer.sendall(data)


async def test_more_connections_than_one_poll_reports_get_equal_shares(pairs: Pairs, poller: Poller) -> None:
    reads: Counter[int] = Counter()
    count = BATCH + 50

    async def wait(sock: socket.socket) -> None:
        def read() -> bool | None:
            reads[sock.fileno()] += 1  # the data stays, so it is always readable
            return True if reads[sock.fileno()] == 20 else None

        await poller.wait(sock.fileno(), read)
        nursery.cancel_scope.cancel()

    with contextlib.ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            peers = []
            for _ in range(count):
                ours, theirs = pairs()
                peers.append(theirs)
                stack.callback(poller.forget, ours.fileno())
                nursery.start_soon(wait, ours)
            await trio.testing.wait_all_tasks_blocked()
            for theirs in peers:
                theirs.sendall(b"x")

    assert len(reads) == count
    assert min(reads.values()) >= 18


async def test_those_at_the_end_of_a_long_batch_are_served_too(pairs: Pairs, poller: Poller) -> None:
    """Each takes a whole turn; a new poll after each turn would report the first ones again."""
    reads: Counter[int] = Counter()
    others = 0

    async def wait(sock: socket.socket) -> None:
        def read() -> bool | None:
            spend(2 * TURN_SECONDS)
            reads[sock.fileno()] += 1
            return True if reads[sock.fileno()] == 5 else None

        await poller.wait(sock.fileno(), read)
        nursery.cancel_scope.cancel()

    async def count_turns() -> None:
        nonlocal others
        while True:
            await trio.lowlevel.checkpoint()
            others += 1

    async with trio.open_nursery() as nursery:
        peers = []
        for _ in range(10):
            ours, theirs = pairs()
            peers.append(theirs)
            nursery.start_soon(wait, ours)
        await trio.testing.wait_all_tasks_blocked()
        for theirs in peers:
            theirs.sendall(b"x")
        nursery.start_soon(count_turns)

    assert len(reads) == 10
    assert min(reads.values()) >= 4
    assert others >= reads.total() // 2 - 1, "between two steps of another task: a turn, and one before its step"


async def test_what_arrives_while_many_tasks_are_runnable_is_read_between_their_steps(
    pairs: Pairs, poller: Poller
) -> None:
    """An HTTP request takes half a millisecond of each of its task's steps; a short call needn't wait for all tasks."""
    ours, theirs = pairs()
    steps, read_after = 0, list[int]()

    def read() -> bytes | None:
        read_after.append(steps)
        return reader(ours)()

    async def work() -> None:
        nonlocal steps
        if not steps:
            theirs.sendall(b"x")
        spend(2 * TURN_SECONDS)
        steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.wait, ours.fileno(), read)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            nursery.start_soon(work)
    assert read_after == [1]


async def test_a_short_call_overtakes_calls_that_defer_work(pairs: Pairs, poller: Poller) -> None:
    """A batch of stored values is acknowledged at once, and each client sends the next one."""
    order: list[str] = []
    senders, peers = [pairs() for _ in range(40)], pairs()

    def store(sock: socket.socket) -> Callable[[], None]:
        def read() -> None:
            sock.recv(1)
            spend(TURN_SECONDS / 4)
            poller.defer(sock, partial(order.append, "began"))
            order.append("long")
            if order.count("long") == 45:  # the second burst: now it is known which ones defer
                peers[1].sendall(b"x")

        return read

    def answer() -> bool | None:
        order.append("short")
        return bool(reader(peers[0])())

    async with trio.open_nursery() as nursery:
        for ours, _ in senders:
            nursery.start_soon(poller.wait, ours.fileno(), store(ours))
        nursery.start_soon(poller.wait, peers[0].fileno(), answer)
        await trio.testing.wait_all_tasks_blocked()
        for count in (40, 80):
            for _, theirs in senders:
                theirs.sendall(b"x")
            while order.count("began") < count:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    reads = [each for each in order if each != "began"]
    assert 45 <= reads.index("short") <= 45 + 10, "two turns at most, of four reads each"


async def test_short_calls_do_not_keep_those_that_defer_work_waiting(pairs: Pairs, poller: Poller) -> None:
    """All have data that stays, so they are always readable."""
    reads: Counter[str] = Counter()
    everyone = [pairs() for _ in range(40)]

    def read(kind: str, sock: socket.socket) -> bool | None:
        reads[kind] += 1
        if kind == "long":
            poller.defer(sock, lambda: None)
        return True if reads.total() > 2000 else None

    async def wait(kind: str, sock: socket.socket) -> None:
        await poller.wait(sock.fileno(), partial(read, kind, sock))
        nursery.cancel_scope.cancel()

    with contextlib.ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for number, (ours, _) in enumerate(everyone):
                stack.callback(poller.forget, ours.fileno())
                nursery.start_soon(wait, "long" if number % 2 else "short", ours)
            await trio.testing.wait_all_tasks_blocked()
            for _, theirs in everyone:
                theirs.sendall(b"x")

    assert reads["long"] >= reads.total() // (MAX_PASSED + 2)


async def test_a_hang_up_is_noticed_during_the_block_and_unread_data_is_none(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    gone = trio.Event()
    theirs.sendall(b"unread")

    with poller.watch_hangup(ours.fileno(), gone.set):
        await trio.testing.wait_all_tasks_blocked()
        assert not gone.is_set()
        theirs.shutdown(socket.SHUT_WR)
        await gone.wait()

    assert await poller.wait(ours.fileno(), reader(ours)) == b"unread"
    poller.forget(ours.fileno())


async def test_data_that_came_while_a_hang_up_was_awaited_is_read_afterwards(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    theirs.sendall(b"first")
    assert await poller.wait(ours.fileno(), reader(ours)) == b"first"
    gone = trio.Event()

    with poller.watch_hangup(ours.fileno(), gone.set):
        theirs.sendall(b"second")
        await trio.testing.wait_all_tasks_blocked()

    assert await poller.wait(ours.fileno(), reader(ours)) == b"second"
    assert not gone.is_set()
    poller.forget(ours.fileno())


async def test_a_peer_that_hung_up_before_the_block_is_noticed_at_once(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    theirs.close()
    gone = trio.Event()

    with poller.watch_hangup(ours.fileno(), gone.set):
        await gone.wait()

    poller.forget(ours.fileno())


async def test_a_watched_descriptor_is_reported_until_it_is_forgotten(pairs: Pairs, poller: Poller) -> None:
    ours, theirs = pairs()
    seen = trio.Event()

    def notify(events: int) -> None:
        ours.recv(100)
        if events & select.EPOLLIN:
            seen.set()

    async with trio.open_nursery() as nursery:
        poller.watch(ours.fileno(), notify, nursery)
        theirs.sendall(b"one")
        await seen.wait()
        poller.forget(ours.fileno())
        theirs.sendall(b"two")
        await trio.testing.wait_all_tasks_blocked()

    assert ours.recv(100) == b"two"


async def test_what_a_watcher_raises_is_raised_in_its_nursery_and_nowhere_else(pairs: Pairs, poller: Poller) -> None:
    (wrong, its_peer), (right, peer) = pairs(), pairs()

    def fail(events: int) -> None:
        raise ZeroDivisionError("a bug in this watcher")

    its_peer.sendall(b"x")
    with pytest.RaisesGroup(ZeroDivisionError):
        async with trio.open_nursery() as nursery:
            poller.watch(wrong.fileno(), fail, nursery)
            await trio.sleep_forever()

    peer.sendall(b"still served")
    assert await poller.wait(right.fileno(), reader(right)) == b"still served"
    poller.forget(right.fileno())
