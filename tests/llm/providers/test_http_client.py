"""Proxies and certificates of the environment: what can't be used hinders only requests that need it."""

import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest
import trio
from attrs import evolve

from agentos.llm.providers.choose import connect
from agentos.llm.providers.provider import Delta, Denied, Failing, Message, Question
from agentos.llm.settings import LLMSettings
from tests.contracts.worlds import VENDORS, VendorWorld
from tests.llm.vendors.script import Says, Text
from tests.support.clients import http_client
from tests.support.wire import PATIENCE

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
HERE = "localhost,127.0.0.1,::1"


def deaf(delta: Delta) -> None:
    pass


@pytest.fixture(params=VENDORS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made: VendorWorld = await request.param(nursery)
    yield made
    await made.aclose()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


ENVIRONMENTS: list[Mapping[str, str]] = [
    {"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": HERE},
    {"all_proxy": "socks4://u:secret@127.0.0.1:9", "no_proxy": "127.0.0.0/8"},
    {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"},
    {"https_proxy": "nonsense://x:y", "NO_PROXY": "[::1,:,"},
    {"SSL_CERT_FILE": "/none/here.pem"},
    {"SSL_CERT_DIR": "/none", "SSL_CERT_FILE": "/dev/null"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
async def test_a_model_on_this_host_needs_neither(
    world: VendorWorld, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    provider = await world.meet(Says([Text("42")]))

    assert (await provider.answer(QUESTION, deaf)).text == "42"


@pytest.mark.parametrize(
    ("environment", "scheme", "told"),
    [
        ({"ALL_PROXY": "socks5://u:secret@127.0.0.1:9"}, "http", "ALL_PROXY names a SOCKS proxy.*pip install socksio"),
        (
            {"http_proxy": "gopher://u:secret@127.0.0.1:9"},
            "http",
            r"http_proxy names a proxy .* used \(gopher",
        ),
        ({"HTTPS_PROXY": "http://u:secret@[::x/"}, "https", "HTTPS_PROXY names a proxy that can't be used"),
        ({"SSL_CERT_FILE": "/none/here.pem"}, "https", "SSL_CERT_FILE=/none/here.pem can't be read .No such file"),
    ],
)
async def test_a_request_that_needs_them_says_what_to_set(
    world: VendorWorld, environment: Mapping[str, str], scheme: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = world.vendor.base_url.replace("http", scheme, 1)
    provider = await connect(evolve(world.choice, base_url=url), LLMSettings())

    with pytest.raises(Denied, match=told) as caught:
        await provider.answer(QUESTION, deaf)
    await provider.aclose()

    assert "secret" not in str(caught.value)
    assert not world.vendor.exchanges


def test_certificates_are_read_only_where_the_server_or_a_proxy_has_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/none/here.pem")
    server, proxy = "http://a.test/v1", {"http": "http://p.test", "no": "https.test"}

    assert "tls" not in http_client.Routes(server, proxy).unusable
    assert "tls" in http_client.Routes("HTTPS://a.test/v1", {}).unusable
    assert "tls" in http_client.Routes(server, {"http": "https://p.test"}).unusable


async def test_a_proxy_is_used(world: VendorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
    provider = await connect(evolve(world.choice, base_url="http://model.invalid/v1"), LLMSettings())
    send, receive = trio.open_memory_channel[bytes](1)

    async def take(stream: trio.SocketStream) -> None:
        await send.send(await stream.receive_some())

    async def ask() -> None:
        with contextlib.suppress(Failing):  # the proxy hangs up
            await provider.answer(QUESTION, deaf)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, take, listeners)
        nursery.start_soon(ask)
        with trio.fail_after(PATIENCE):
            head = await receive.receive()
        nursery.cancel_scope.cancel()
    await provider.aclose()

    assert head.startswith(b"POST http://model.invalid/v1")


@pytest.mark.parametrize(
    ("entries", "host", "direct"),
    [
        ("a.test", "a.test", True),
        ("a.test", "b.a.test", True),
        (".a.test", "b.a.test", True),
        ("a.test", "xa.test", False),
        ("a.test:80", "a.test", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("fd00::/8,::1", "::1", True),
        ("[::1]", "::1", True),
        ("*", "a.test", True),
        ("", "a.test", False),
    ],
)
def test_hosts_without_a_proxy_are_named_in_many_ways(entries: str, host: str, direct: bool) -> None:
    assert http_client.is_direct(host, 80, {"http": "http://p", "no": entries}) is direct


def test_a_proxy_for_all_is_that_of_each_scheme_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://a:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://b:2")

    proxies = http_client.find_proxies()

    assert (proxies["http"], proxies["https"]) == ("http://a:1", "http://b:2")
