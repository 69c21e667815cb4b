"""Egress connects only to what was judged, and asks a name's server only when it connects."""

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.services.http import resolver
from agentos.services.http.addresses import Address, address_text
from agentos.services.http.dns_client import DnsError, decode_answer, encode_question
from agentos.services.http.egress import Egress
from agentos.services.http.settings import HttpSettings
from agentos_sdk.errors import PermissionDenied, Timeout, Unavailable
from tests.support.runs.rows import each_row
from tests.support.servers.dns_server import DnsServer, serve_dns
from tests.support.wire import PATIENCE

OWNER = 7


@define
class Judge:
    """Keeps what it judged, and refuses what isn't ``allowed``."""

    allowed: set[str]
    judged: list[str] = field(factory=list)

    def __call__(self, address: Address, port: int) -> None:
        self.judged.append(address_text(address))
        if address_text(address) not in self.allowed:
            raise PermissionDenied(f"not {address_text(address)}")


@asynccontextmanager
async def greeter(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A server that says on which address it was reached; yields its port."""
    [listener] = await trio.open_tcp_listeners(port, host=host)

    async def greet(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(stream.socket.getsockname()[0].encode())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, greet, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def greeting(stream: trio.SocketStream) -> str:
    async with stream:
        return (await stream.receive_some(100)).decode()


def egress_with(dns: DnsServer) -> Egress:
    return Egress(HttpSettings(resolver=dns.address))


async def test_it_connects_to_an_address_that_was_judged() -> None:
    judge = Judge({"127.0.0.2"})
    async with serve_dns(DnsServer({"db.test": ["127.0.0.2"]})) as dns, greeter("127.0.0.2") as port:
        reached = await greeting(await egress_with(dns).connect(OWNER, "db.test", port, judge))

    assert reached == "127.0.0.2"
    assert judge.judged == ["127.0.0.2"]


async def test_of_many_addresses_every_one_is_judged_and_only_one_that_passed_is_connected_to() -> None:
    addresses = ["127.0.0.1", "127.0.0.3", "127.0.0.2", "::1"]
    judge = Judge({"127.0.0.2"})
    async with (
        serve_dns(DnsServer({"mixed.test": addresses})) as dns,
        greeter("127.0.0.2") as port,
        greeter("127.0.0.1", port),
        greeter("::1", port),
    ):
        reached = await greeting(await egress_with(dns).connect(OWNER, "mixed.test", port, judge))

    assert reached == "127.0.0.2"
    assert set(judge.judged) == set(addresses)


async def test_a_name_whose_addresses_are_all_refused_is_refused_with_the_reason() -> None:
    async with serve_dns(DnsServer({"inside.test": ["127.0.0.1", "::1"]})) as dns, greeter() as port:
        with pytest.raises(PermissionDenied, match="not ::1"):
            await egress_with(dns).connect(OWNER, "inside.test", port, Judge(set()))


async def test_a_name_that_changes_its_address_between_two_lookups_is_judged_anew_each_time() -> None:
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])
    judge = Judge({"127.0.0.2"})
    async with (
        serve_dns(DnsServer({"rebind.test": lambda: next(answers)})) as dns,
        greeter("127.0.0.2") as port,
        greeter("127.0.0.1", port),
    ):
        egress = egress_with(dns)
        assert await greeting(await egress.connect(OWNER, "rebind.test", port, judge)) == "127.0.0.2"
        with pytest.raises(PermissionDenied):
            await egress.connect(OWNER, "rebind.test", port, judge)

    assert dns.asked.count("rebind.test") == 4  # A and AAAA, once for each connection


async def test_an_address_is_judged_and_never_asked_for() -> None:
    judge = Judge({"127.0.0.1"})
    async with serve_dns(DnsServer()) as dns, greeter() as port:
        assert await greeting(await egress_with(dns).connect(OWNER, "127.0.0.1", port, judge)) == "127.0.0.1"

    assert dns.asked == []


async def test_an_alias_is_followed_to_the_judged_address() -> None:
    judge = Judge({"127.0.0.2"})
    records = {"www.test": ["cdn.test"], "cdn.test": ["127.0.0.2"]}
    async with serve_dns(DnsServer(records)) as dns, greeter("127.0.0.2") as port:
        assert await greeting(await egress_with(dns).connect(OWNER, "www.test", port, judge)) == "127.0.0.2"


def test_a_name_of_many_pointers_is_not_followed() -> None:
    question = encode_question(7, "a.test", 1)
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, 2, 0, 0) + question[12:]
    text = 16  # any type that isn't an address
    begin = len(head) + 12
    pointers = b"".join(struct.pack("!H", 0xC000 | (begin + 2 * n - 2 if n else 12)) for n in range(1000))
    records = b"\xc0\x0c" + struct.pack("!HHIH", text, 1, 0, len(pointers)) + pointers
    records += pointers[-2:] + struct.pack("!HHIH", text, 1, 0, 0)

    with pytest.raises(DnsError, match="malformed"):
        decode_answer(head + records, question)


@pytest.mark.parametrize("kind", [1, 5, 16], ids=["addresses", "aliases", "texts"])
def test_an_answer_of_many_long_names_is_not_decoded(kind: int) -> None:
    question = encode_question(7, "a.test", 1)
    name = b"\1a" * 126 + b"\0"
    records = [b"\xc0\x0c" + struct.pack("!HHIH", 16, 1, 0, len(name)) + name]
    pointer = struct.pack("!H", 0xC000 | (len(question) + 12))
    data = {1: b"\x7f\0\0\2", 5: pointer, 16: b""}[kind]
    records += [pointer + struct.pack("!HHIH", kind, 1, 0, len(data)) + data] * 4000
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, len(records), 0, 0) + question[12:]

    with pytest.raises(DnsError, match="malformed"):  # to decode it takes a second
        decode_answer(head + b"".join(records), question)


def test_an_answer_of_many_addresses_is_decoded() -> None:
    question = encode_question(7, "a.test", 1)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + b"\x7f\0\0\2"
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, 1000, 0, 0) + question[12:]

    answer = decode_answer(head + record * 1000, question)

    assert answer is not None
    assert len(answer.addresses) == 1000


async def test_an_answer_that_is_cut_off_is_asked_for_over_tcp() -> None:
    judge = Judge({"127.0.0.2"})
    dns = DnsServer({"large.test": ["127.0.0.2"]}, cut_off={"large.test"})
    async with serve_dns(dns), greeter("127.0.0.2") as port:
        assert await greeting(await egress_with(dns).connect(OWNER, "large.test", port, judge)) == "127.0.0.2"


async def test_an_address_that_does_not_answer_costs_only_the_next_attempts_delay() -> None:
    judge = Judge({"127.0.0.2", "127.0.0.3"})
    async with serve_dns(DnsServer({"two.test": ["127.0.0.3", "127.0.0.2"]})) as dns, greeter("127.0.0.2") as port:
        assert await greeting(await egress_with(dns).connect(OWNER, "two.test", port, judge)) == "127.0.0.2"


@pytest.mark.parametrize("name", ["missing.test", "empty.test"])
async def test_a_name_without_addresses_is_unavailable(name: str) -> None:
    async with serve_dns(DnsServer({"empty.test": []})) as dns:
        with pytest.raises(Unavailable, match=name):
            await egress_with(dns).connect(OWNER, name, 80, Judge(set()))


async def test_a_lookup_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "LOOKUP_SECONDS", 0.2)
    async with serve_dns(DnsServer(silent={"silent.test"})) as dns:
        with pytest.raises(Timeout, match="silent"):
            await egress_with(dns).connect(OWNER, "silent.test", 80, Judge(set()))


async def test_an_owner_has_four_lookups_at_once_and_another_owner_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "LOOKUP_SECONDS", 3600)
    names = [f"n{number}.test" for number in range(10)]
    dns = DnsServer({"other.test": ["127.0.0.2"]}, silent=set(names))
    async with serve_dns(dns), greeter("127.0.0.2") as port, trio.open_nursery() as nursery:
        egress = egress_with(dns)
        for name in names:
            nursery.start_soon(egress.connect, OWNER, name, 80, Judge(set()))

        stream = await egress.connect(OWNER + 1, "other.test", port, Judge({"127.0.0.2"}))

        assert await greeting(stream) == "127.0.0.2"
        with trio.fail_after(PATIENCE):
            while len(set(dns.asked) - {"other.test"}) < resolver.MAX_LOOKUPS:
                await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked()
        assert len(set(dns.asked) - {"other.test"}) == resolver.MAX_LOOKUPS
        nursery.cancel_scope.cancel()


async def test_the_hosts_resolver_is_asked_without_a_server() -> None:
    judge = Judge({"127.0.0.1", "::1"})
    async with greeter("127.0.0.1") as port:
        assert await greeting(await Egress().connect(OWNER, "localhost", port, judge)) == "127.0.0.1"


@each_row(
    ("own", "host", "refused"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "127.8.9.1", True),
        ("::", "127.0.0.1", True),
        ("::", "::1", True),
        ("::1", "::", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "127.0.0.1", False),
    ],
)
async def test_a_listener_of_the_kernel_is_refused_even_if_its_address_is_granted(
    own: str, host: str, refused: bool
) -> None:
    async with greeter("0.0.0.0") as port:
        egress = Egress(own_listeners={(ip_address(own), port)})
        allowed = Judge({host})
        if refused:
            with pytest.raises(PermissionDenied, match="kernel's own"):
                await egress.connect(OWNER, host, port, allowed)
        else:
            await (await egress.connect(OWNER, host, port, allowed)).aclose()


async def test_a_listener_is_refused_until_the_kernel_closes_it() -> None:
    egress, allowed = Egress(), Judge({"127.0.0.1"})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with egress.refuse(listener), pytest.raises(PermissionDenied, match="kernel's own"):
            await egress.connect(OWNER, "127.0.0.1", port, allowed)
        await (await egress.connect(OWNER, "127.0.0.1", port, allowed)).aclose()


ADDRESSES = [f"127.0.0.{number}" for number in range(1, 6)] + ["::1"]


@settings(deadline=None, max_examples=50)
@given(
    answers=st.lists(st.lists(st.sampled_from(ADDRESSES), max_size=6), min_size=1, max_size=3),
    allowed=st.sets(st.sampled_from(ADDRESSES)),
)
def test_what_is_judged_is_what_is_connected_to(answers: list[list[str]], allowed: set[str]) -> None:
    async def connect_often() -> None:
        following = iter(answers)
        dns = DnsServer({"n.test": lambda: next(following)})
        async with serve_dns(dns), greeter("0.0.0.0") as port:
            egress = egress_with(dns)
            for answer in answers:
                judge = Judge(allowed)
                ipv4 = {address for address in answer if ":" not in address}
                try:
                    reached = await greeting(await egress.connect(OWNER, "n.test", port, judge))
                except (PermissionDenied, Unavailable):
                    assert not ipv4 & allowed
                else:
                    assert reached in ipv4 & allowed
                assert set(judge.judged) == ipv4

    trio.run(connect_often)


# -- An upstream proxy -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def proxy(answer: Callable[[bytes], bytes]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that reads one head and answers it; yields its port and the heads."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    heads: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await stream.receive_some(1)
            heads.append(head)
            for byte in answer(head):
                await stream.send_all(bytes([byte]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1], heads
        nursery.cancel_scope.cancel()


async def test_a_proxy_is_asked_for_the_name_which_is_never_resolved_here() -> None:
    judge = Judge(set())
    async with (
        serve_dns(DnsServer()) as dns,
        proxy(lambda _: b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nserver speaks first") as (port, heads),
    ):
        egress = Egress(HttpSettings(upstream_proxy=("127.0.0.1", port), resolver=dns.address))
        stream = await egress.connect(OWNER, "example.test", 443, judge)
        async with stream:
            spoken = b"".join([chunk async for chunk in stream])

    assert spoken == b"server speaks first"
    assert heads == [b"CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n\r\n"]
    assert (judge.judged, dns.asked) == ([], [])


async def test_an_address_is_judged_before_a_proxy_is_asked_for_it() -> None:
    async with proxy(lambda _: b"HTTP/1.1 200 OK\r\n\r\n") as (port, heads):
        egress = Egress(HttpSettings(upstream_proxy=("127.0.0.1", port)))
        with pytest.raises(PermissionDenied):
            await egress.connect(OWNER, "::1", 443, Judge(set()))

    assert heads == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 403 no\r\n\r\n", "answered 403"),
        (b"HTTP/1.1 200 OK\r\n", "ended the connection"),
        (b"", "ended the connection"),
        (b"SSH-2.0\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, "no HTTP"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_unavailable(answer: bytes, why: str) -> None:
    async with proxy(lambda _: answer) as (port, _):
        with pytest.raises(Unavailable, match=why):
            await Egress(HttpSettings(upstream_proxy=("127.0.0.1", port))).connect(OWNER, "a.test", 443, Judge(set()))
