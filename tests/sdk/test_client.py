"""The Trio client, against a real kernel and against a peer that misbehaves."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from agentos_sdk import ConnectionFailed, connect, errors
from agentos_sdk import Kernel as Client
from agentos_sdk.calls.agents import AgentInfo
from agentos_sdk.frames import frame
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, running, shared
from tests.support.wire import PATIENCE

T = TypeVar("T")


@pytest.fixture(scope="module")
def server(kernels: None) -> Iterator[Kernel]:
    """A kernel for this module alone: its agents come and go."""
    with shared() as kernel:
        yield kernel


async def until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """What ``ask`` answers as soon as ``holds`` is true of it."""
    with trio.move_on_after(PATIENCE):
        while not holds(answer := await ask()):
            await trio.sleep(0.01)
        return answer
    raise AssertionError(f"not within {PATIENCE:g} s; the last answer was {answer!r}")


async def test_the_kernel_tells_the_callers_name_and_gives_typed_replies(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        agents = await kernel.list_agents()
        tree = await kernel.tree()

        assert kernel.name == f"operator#{kernel.agent_id}"
        assert all(agent.id != kernel.agent_id for agent in agents)
        assert tree["name"] == "root"


async def test_many_calls_are_under_way_at_once_on_one_connection(server: Kernel) -> None:
    order: list[str] = []

    async with connect(server.socket) as kernel, trio.open_nursery() as nursery:

        async def wait_for_a_message() -> None:
            (message,) = await kernel.recv_messages(timeout=PATIENCE)
            order.append(f"received {message.message}")

        nursery.start_soon(wait_for_a_message)
        for number in range(100):
            assert await kernel.echo(str(number)) == str(number)
        order.append("echoed")
        await kernel.send_message("hello", to=kernel.agent_id)

    assert order == ["echoed", "received hello"]


async def test_nothing_is_a_message_and_receiving_does_not_wait_by_default(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        await kernel.send_message(None, to=kernel.agent_id)

        assert [message.message for message in await kernel.recv_messages()] == [None]
        assert await kernel.recv_messages() == ()


async def test_cancelling_a_scope_withdraws_the_request(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        with trio.move_on_after(0.05) as scope:
            await kernel.recv_messages(timeout=PATIENCE)
        await kernel.send_message("not for the one that left", to=kernel.agent_id)

        assert scope.cancelled_caught
        assert [message.message for message in await kernel.recv_messages()] == ["not for the one that left"]
        await until(lambda: _nothing(), lambda _: not kernel._pending)


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


async def test_a_cancelled_spawn_leaves_no_agent_behind(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(kernel.spawn, "late", command=["sleep", "60"], ready="hello"))
            await until(lambda: _named(kernel, "late"), bool)
            nursery.cancel_scope.cancel()
        (late,) = await until(lambda: _named(kernel, "late"), lambda found: bool(found) and found[0].state == "exited")

        assert late.pid is None


async def _named(kernel: Client, name: str) -> list[AgentInfo]:
    return [agent for agent in await kernel.list_agents(all=True) if agent.name == name]


async def test_a_failed_call_raises_its_error_and_the_connection_lives_on(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        with pytest.raises(errors.NotFound, match="nobody"):
            await kernel.kill("nobody")
        with pytest.raises(errors.BadRequest, match="exactly one"):
            await kernel.wait()

        assert await kernel.echo("still here") == "still here"


async def test_a_program_that_does_not_start_says_how_it_ended(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        with pytest.raises(errors.Unavailable, match="exit status 3") as caught:
            await kernel.spawn("broken", command=["sh", "-c", "echo why >&2; exit 3"], ready="hello")

        assert caught.value.details["exit_code"] == 3
        assert caught.value.details["stderr"] == ["why"]


async def test_following_a_log_ends_with_its_agent(server: Kernel) -> None:
    lines: list[str] = []

    async with connect(server.socket) as kernel:
        await kernel.spawn("counter", command=["sh", "-c", "sleep 1; for i in 1 2 3; do echo $i; sleep 0.1; done"])
        async with kernel.follow_logs("counter") as pages:
            async for page in pages:
                lines += [line.text for line in page.lines if line.stream == "stdout"]
        end = await kernel.wait("counter")

    assert lines == ["1", "2", "3"]
    assert (end.exit_code, end.signal) == (0, None)


async def test_leaving_a_followed_log_early_withdraws_it(server: Kernel) -> None:
    async with connect(server.socket) as kernel:
        await kernel.spawn("talker", command=["sh", "-c", "while :; do echo x; sleep 0.01; done"])
        async with kernel.follow_logs("talker") as pages:
            await anext(pages)
        await kernel.kill("talker")

        await until(lambda: _nothing(), lambda _: not kernel._pending)


async def test_an_error_in_the_body_comes_out_as_it_is(server: Kernel) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect(server.socket):
            _ = 1 / 0


async def test_without_a_kernel_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="agentos run"):
        async with connect(str(tmp_path / "none")):
            pass


@pytest.mark.usefixtures("kernels")
async def test_calls_of_a_connection_that_broke_fail_and_do_not_hang() -> None:
    with running() as doomed:
        async with connect(doomed.socket) as kernel:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_expect_failure, partial(kernel.recv_messages, timeout=PATIENCE))
                await kernel.echo(b"under way")
                await trio.to_thread.run_sync(doomed.kill)
            await _expect_failure(kernel.list_agents)


async def _expect_failure(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(ConnectionFailed, match="gone"):
        await call()


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionFailed, "expected a frame"),
        (b"", ConnectionFailed, "closed by the kernel"),
        (
            frame(0, Op.NOOP, b'{"success":false,"code":"permission_denied","error":"not for you"}'),
            errors.PermissionDenied,
            "not for you",
        ),
    ],
    ids=["no kernel", "closes", "refuses"],
)
async def test_a_peer_that_does_not_let_us_in_is_an_error_that_says_so(
    answer: bytes, error: type[Exception], says: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(tmp_path / "s"))
    listener.listen()

    async def serve() -> None:
        sock, _ = await listener.accept()
        async with trio.SocketStream(sock) as peer:
            await peer.receive_some()
            await peer.send_all(answer)

    nursery.start_soon(serve)
    with pytest.raises(error, match=says):
        async with connect(str(tmp_path / "s")):
            pass
    listener.close()
