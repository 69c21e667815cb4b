"""The client asks the rules again before each request that it sends."""

import pytest
import trio
import trio.testing

from agentos.services.http.client import MAX_REQUESTS, Client
from agentos.services.http.destination import Destination
from agentos.services.http.egress import Egress
from agentos.services.http.request import Hop, OutgoingRequest, Permit
from agentos_sdk.errors import CallError, PermissionDenied
from tests.support.wire import PATIENCE

from .test_secret_requests import Server, allow, follow, plain, serving

OWNER = 7


def to(server: Server, path: str) -> OutgoingRequest:
    hop = follow("GET", f"http://127.0.0.1:{server.port}{path}")
    assert hop is not None
    return OutgoingRequest(hop, max_redirects=5)


async def test_a_request_that_is_denied_while_it_waits_for_its_turn_is_not_sent() -> None:
    release, client = trio.Event(), Client(Egress())
    denied = list[CallError]()

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await release.wait()
        await stream.send_all(plain(b""))

    async def send(path: str, permit: Permit) -> None:
        async with client.request(OWNER, to(server, path), permit):
            pass

    async def send_last() -> None:
        with pytest.raises(PermissionDenied):
            await send("/last", Permit(allow, follow, lambda to: next(iter(denied), None)))

    with trio.fail_after(PATIENCE):
        async with serving(answer) as server, trio.open_nursery() as nursery:
            for _ in range(MAX_REQUESTS):
                nursery.start_soon(send, "/", Permit(allow, follow, lambda to: None))
            while len(server.heads) < MAX_REQUESTS:
                await trio.sleep(0.01)
            nursery.start_soon(send_last)
            await trio.testing.wait_all_tasks_blocked(0.05)
            denied.append(PermissionDenied("no longer"))
            client.judge_again()
            release.set()
        client.forget(OWNER)

    assert not [head for head in server.heads if b"/last" in head]


@pytest.mark.parametrize("most", [9, 10, 11])
async def test_a_body_is_whole_up_to_as_many_bytes_as_are_wanted(most: int) -> None:
    client = Client(Egress())

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"0123456789"))

    async with serving(answer) as server:
        async with client.request(OWNER, to(server, "/"), Permit(allow, follow, lambda to: None)) as response:
            assert await response.read_all(most) == (bytearray(b"0123456789"[:most]), most < 10)
        client.forget(OWNER)


async def test_a_redirect_to_a_longer_url_than_any_is_the_response() -> None:
    client = Client(Egress())

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        path = b"/" + b"../" * 5000 + b"x"  # joined it would be /x
        await stream.send_all(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % path)

    permit = Permit(allow, follow, lambda to: None)
    async with serving(answer) as server, client.request(OWNER, to(server, "/"), permit) as response:
        assert response.status == 302
    client.forget(OWNER)

    assert len(server.heads) == 1


async def test_a_redirect_that_is_denied_before_its_first_response_ends_is_not_followed() -> None:
    release, client = trio.Event(), Client(Egress())
    denied = list[str]()

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 1\r\n\r\n")
        await release.wait()
        await stream.send_all(b"x")

    def find_refusal(destination: Destination) -> CallError | None:
        return PermissionDenied("no longer") if destination.path in denied else None

    def follow_and_deny(method: str, url: str) -> Hop | None:
        hop = follow(method, url)
        denied.append("/next")
        client.judge_again()
        release.set()
        return hop

    with trio.fail_after(PATIENCE):
        async with serving(answer) as server:
            with pytest.raises(PermissionDenied):
                async with client.request(OWNER, to(server, "/"), Permit(allow, follow_and_deny, find_refusal)):
                    pass
        client.forget(OWNER)

    assert not [head for head in server.heads if b"/next" in head]


class Steps(trio.abc.Instrument):
    """Counts the steps of the task that has made it."""

    def __init__(self) -> None:
        self.task, self.count = trio.lowlevel.current_task(), 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


@pytest.mark.parametrize(
    "head",
    ["302 Found", "307 Temporary", "302 Found\r\nContent-Encoding: gzip"],
    ids=["redirect", "repeated", "compressed"],
)
async def test_a_redirects_body_in_chunks_of_a_byte_holds_up_no_other_task(head: str) -> None:
    client, chunks, steps = Client(Egress()), 5000, Steps()

    async def answer(stream: trio.SocketStream, asked: bytes) -> None:
        if b"/next" in asked:
            await stream.send_all(plain(b""))
        else:
            begin = f"HTTP/1.1 {head}\r\nLocation: /next\r\nTransfer-Encoding: chunked\r\n\r\n"
            await stream.send_all(begin.encode() + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")

    permit = Permit(allow, follow, lambda to: None)
    with trio.fail_after(PATIENCE):
        async with serving(answer) as server:
            async with client.request(OWNER, to(server, "/next"), permit):
                pass  # what has to be loaded is
            trio.lowlevel.add_instrument(steps)
            async with client.request(OWNER, to(server, "/"), permit) as response:
                assert response.status == 200
            trio.lowlevel.remove_instrument(steps)
        client.forget(OWNER)

    assert steps.count > chunks  # one for each
