"""Requests and tunnels through the proxy that a person must approve: what is shown, and how long an approval holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

from agentos.gateways.http_proxy.shown_request import MAX_BODY
from agentos.permissions.shown_lines import to_plain
from tests.permissions.approvals.approval_desk import OPERATOR, Desk, opened

from .world import World, world


@define
class Asked:
    """A proxy whose rules ask about ``api.test``, the person who is asked, and the requests that arrived there."""

    here: World
    desk: Desk
    host: str
    arrived: list[bytes] = field(factory=list)

    async def answer(self, stream: trio.SocketStream) -> None:
        received = b""
        while not received.endswith(b"END"):
            data = await stream.receive_some()
            if not data:
                return
            received += data
        self.arrived.append(received)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npaid")

    def post(self, body: bytes, *headers: str) -> bytes:
        lines = "".join(f"{line}\r\n" for line in (f"Host: {self.host}", *headers))
        head = f"POST http://{self.host}/pay?to=7 HTTP/1.1\r\n{lines}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def give_up(self, request: bytes) -> int:
        """Send a request and disconnect once a person is asked; returns the id of the approval."""
        async with await self.here.connect() as stream:
            await stream.send_all(request)
            [entry] = await self.desk.listed()
        return entry.id

    async def tell(self, request: bytes) -> bytes:
        """What the proxy answers first."""
        async with await self.here.connect() as stream:
            await stream.send_all(request)
            return bytes(await stream.receive_some())


@asynccontextmanager
async def asking(place: Path) -> AsyncIterator[Asked]:
    async with opened(place) as desk, world({"api.test": ["127.0.0.1"]}, desk.queue) as here:
        asked = Asked(here, desk, "")
        asked.host = f"api.test:{await here.serve(asked.answer)}"
        here.grant(ask=[asked.host], allow=["127.0.0.1:" + asked.host.partition(":")[2]])
        desk.queue.on_forgotten = here.authorizer.announce_change
        yield asked


@pytest.mark.parametrize("expecting", [False, True])
async def test_a_person_sees_the_body_of_a_request_which_is_sent_once_it_is_approved(
    tmp_path: Path, expecting: bool
) -> None:
    async with asking(tmp_path) as asked:
        body = b'{"amount": 1}END'
        request = asked.post(body, *(["Expect: 100-continue"] if expecting else []))
        async with await asked.here.connect() as stream:
            await stream.send_all(request.removesuffix(body))
            if expecting:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
            await stream.send_all(body)
            [entry] = await asked.desk.listed()
            assert '| {"amount": 1}END' in to_plain(entry.shown).split("\n")
            assert asked.arrived == []

            await asked.desk.decide(entry.id)

            reply = b""
            while not reply.endswith(b"paid"):
                reply += await stream.receive_some(1)
            assert [one.partition(b"\r\n\r\n")[2] for one in asked.arrived] == [body]
            await stream.send_all(asked.post(b"END"))
            assert (await asked.desk.listed())[0].id != entry.id, "the connection is used again"


async def test_an_approval_holds_for_no_other_body_and_no_other_header(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        key = "Authorization: Bearer one"
        await asked.desk.decide(await asked.give_up(asked.post(b"1 END", key)))

        for request in (asked.post(b"2 END", key), asked.post(b"1 END", "Authorization: Bearer two")):
            await asked.desk.decide(await asked.give_up(request), allow=False)
        assert asked.arrived == []

        assert (await asked.tell(asked.post(b"1 END", key))).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_cannot_be_shown_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        chunked = f"POST http://{asked.host}/ HTTP/1.1\r\nHost: {asked.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        large = asked.post(b"x" * (MAX_BODY + 1))

        replies = [await asked.tell(request) for request in (chunked.encode(), large)]

        assert [reply.split()[1] for reply in replies] == [b"400", b"413"]
        assert b"at most 256 KiB" in replies[1]
        assert all(b"use the HTTP call" in reply for reply in replies)
        assert (asked.desk.queue.pending(), asked.arrived) == ([], [])
        await asked.give_up(asked.post(b"x" * MAX_BODY))


async def test_where_no_person_can_be_asked_what_a_rule_asks_about_is_refused() -> None:
    async with world(ask=["api.test:80"]) as here:
        reply = await here.tell(b"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 403 "), reply


async def test_a_remembered_answer_lets_any_body_pass(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await asked.desk.decide(await asked.give_up(asked.post(b"END")), remember="always")
        assert (await asked.tell(asked.post(b"END"))).startswith(b"HTTP/1.1 200 "), "the approval itself"

        body = b"x" * (2 * MAX_BODY) + b"END"
        assert (await asked.tell(asked.post(body))).startswith(b"HTTP/1.1 200 ")

        assert asked.arrived[-1].endswith(body)


@asynccontextmanager
async def open_tunnel(asked: Asked, **more: object) -> AsyncIterator[trio.SocketStream]:
    """A tunnel that a person has approved."""
    found = list[trio.SocketStream]()

    async def connect() -> None:
        found.append(await asked.here.tunnel(asked.host))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        [entry] = await asked.desk.listed()
        await asked.desk.decide(entry.id, **more)  # type: ignore[arg-type]
    async with found[0]:
        yield found[0]


async def test_a_tunnel_ends_when_the_answer_that_allowed_it_is_forgotten(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked, open_tunnel(asked, remember="always") as one:
        async with await asked.here.tunnel(asked.host) as other:
            asked.here.authorizer.announce_change()
            with trio.move_on_after(0.1) as silent:
                await one.receive_some()
            assert silent.cancelled_caught, "it goes on while the answer holds"

            await asked.desk.queue.forget(OPERATOR, 1)

            assert [await one.receive_some(), await other.receive_some()] == [b"", b""]
        assert [text.rpartition(" ")[2] for text in asked.here.outcomes()] == ["approval_required"] * 2


async def test_a_tunnel_that_was_approved_once_goes_on_when_an_answer_is_forgotten(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked, open_tunnel(asked) as tunnel:
        asked.here.authorizer.announce_change()

        await tunnel.send_all(b"END")
        assert await tunnel.receive_some()


async def test_a_tunnel_ends_with_the_time_of_the_answer_that_allowed_it(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        began = trio.current_time()
        async with open_tunnel(asked, remember="always", seconds=0.5) as tunnel:
            assert await tunnel.receive_some() == b""
        assert trio.current_time() - began >= 0.4
        assert asked.here.outcomes()[-1].endswith(": approval_required")
