"""Accepted connections that wait for admission: each takes a file descriptor of the kernel, whatever is answered."""

import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from agentos.kernel.caller import MAX_CONNECTIONS, Caller
from agentos.kernel.wire.listener import MAX_ADMITTING, OPERATOR_RESERVE, ConnectionLimit, Listener, Peer, listen
from agentos.kernel.wire.poller import Poller
from tests.sdk.impostors import short_directory


@pytest.fixture(autouse=True, scope="module")
def descriptors() -> Iterator[None]:
    """As many as this process may have, as the kernel takes: a shell's limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def admit_none(peer: Peer) -> Caller:
    await trio.sleep_forever()
    raise AssertionError


@asynccontextmanager
async def listening(limit: ConnectionLimit, count: int, is_agents: bool) -> AsyncIterator[Sequence[Path]]:
    """Sockets at which nothing is ever admitted."""
    with short_directory() as place, contextlib.ExitStack() as stack:
        poller, paths = Poller(), [place / f"{number}" for number in range(count)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            await wait_all_tasks_blocked()
            for path in paths:
                sock = stack.enter_context(listen(f"{path}"))
                nursery.start_soon(Listener(sock, limit, poller, admit_none, is_agents=is_agents).serve)
            yield paths
            nursery.cancel_scope.cancel()


async def count_accepted(paths: Sequence[Path], tries: int) -> list[int]:
    """How many of so many connections to each socket the kernel has accepted; Linux's backlog has the others."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            for _ in range(tries):
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect(f"{path}")
        await wait_all_tasks_blocked(0.05)
        return await trio.to_thread.run_sync(lambda: [*map(look, paths)])


def look(path: Path) -> int:
    """The kernel's end of an accepted one has the path and an inode of its own; in the backlog it has none."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    ends = [line.split() for line in lines if line.endswith(f" {path}")]
    return sum(end[5] == "03" and end[6] != "0" for end in ends)


async def test_an_agent_s_socket_has_no_more_waiting_than_an_agent_may_have_connections() -> None:
    limit = ConnectionLimit(4096)
    async with listening(limit, 1, is_agents=True) as paths:
        assert await count_accepted(paths, 500) == [MAX_CONNECTIONS + MAX_ADMITTING]
        assert limit.waiting == MAX_CONNECTIONS
    assert limit.waiting == 0


async def test_the_sockets_of_many_agents_have_no_more_than_the_kernel_and_each_has_some() -> None:
    limit = ConnectionLimit(200)
    async with listening(limit, 8, is_agents=True) as paths:
        accepted = await count_accepted(paths, 200)
        assert limit.waiting <= 200 + len(paths)
        assert sum(accepted) <= 200 + len(paths) * (1 + MAX_ADMITTING)
        assert min(accepted) > MAX_ADMITTING


@pytest.mark.parametrize("connections", [0, 4096])
async def test_agents_leave_the_operator_s_socket_what_it_may_have(connections: int) -> None:
    limit = ConnectionLimit(OPERATOR_RESERVE, connections=connections, waiting=1000)
    async with listening(limit, 1, is_agents=False) as paths:
        assert await count_accepted(paths, 300) == [OPERATOR_RESERVE + MAX_ADMITTING]
        assert limit.waiting == 1000
