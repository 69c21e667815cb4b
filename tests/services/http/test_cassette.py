"""What a request is answered with from a HAR file, and what is said where there is nothing."""

import json
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agentos.services.http.addresses import Address
from agentos.services.http.cassette import Cassette
from agentos.services.http.client import Client
from agentos.services.http.destination import Destination
from agentos.services.http.egress import Egress, JudgeAddress
from agentos.services.http.request import OutgoingRequest, Permit
from agentos.services.http.secrets import Redactor
from agentos_sdk.errors import PermissionDenied, QuotaExceeded, Unavailable

from .test_har import entry, write
from .test_secret_requests import allow, follow

PERMIT = Permit(allow, follow, lambda to: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.har"


async def get(
    client: Client, url: str, method: str = "GET", body: bytes = b"", permit: Permit = PERMIT, redirects: int = 0
) -> tuple[int, bytes]:
    hop = follow(method, url)
    assert hop is not None
    async with client.request(7, OutgoingRequest(hop, body=body, max_redirects=redirects), permit) as response:
        found, _ = await response.read_all(1 << 20)
        return response.status, bytes(found)


def playing(path: Path) -> Client:
    return Client(Egress(), Cassette.read(path))


def post(url: str, body: object, text: str) -> dict[str, Any]:
    return entry(url, text, "POST", request={"postData": {"mimeType": "application/json", "text": json.dumps(body)}})


async def test_requests_are_answered_by_what_they_ask_in_any_order(path: Path) -> None:
    write(path, entry("http://a.example/1", "one"), entry("http://a.example/2", "x" * 200_000))
    client = playing(path)

    assert await get(client, "http://a.example/2") == (200, b"x" * 200_000)
    assert await get(client, "http://a.example/1#part") == (200, b"one")


async def test_the_nth_equal_request_gets_the_nth_response_and_no_further_one(path: Path) -> None:
    write(path, entry("http://a.example/", "one"), entry("http://a.example/", "two"))
    client = playing(path)

    assert [await get(client, "http://a.example/") for _ in range(2)] == [(200, b"one"), (200, b"two")]
    with pytest.raises(Unavailable, match=r"shop\.har has no response to this request: asked 3 times, recorded 2"):
        await get(client, "http://a.example/")


async def test_bodies_of_json_are_equal_by_their_values(path: Path) -> None:
    write(path, post("http://a.example/", {"a": 1, "b": [True]}, "one"), post("http://a.example/", {"a": 2}, "two"))
    client = playing(path)

    assert await get(client, "http://a.example/", "POST", b'{"a":2}') == (200, b"two")
    assert await get(client, "http://a.example/", "POST", b'{"b":[true],"a":1}') == (200, b"one")


@pytest.mark.parametrize(
    ("method", "url", "body", "why"),
    [
        ("GET", "http://b.example/", b"", "nothing is recorded of http://b.example"),
        ("GET", "https://a.example/items", b"", "nothing is recorded of https://a.example"),
        ("GET", "http://a.example/item?page=1", b"", "the same as entry 1 but for path"),
        ("DELETE", "http://a.example/items?page=1", b"", "the same as entry 1 but for method"),
        ("GET", "http://a.example/items?page=2", b"", "the same as entry 1 but for query 'page'"),
        ("GET", "http://a.example/items?page=1&all", b"", "the same as entry 1 but for query 'all'"),
        ("GET", "http://a.example/items", b"", "the same as entry 1 but for query: 1 recorded fields are missing"),
        ("GET", "http://a.example/items?%70age=1", b"", "the same as entry 1 but for query"),
        ("POST", "http://a.example/buy", b'{"of": "clay", "n": 2}', "the same as entry 2 but for body 'n'"),
        ("POST", "http://a.example/buy", b"clay", "the same as entry 2 but for body"),
        ("POST", "http://a.example/say", b"one\nthree", "the same as entry 3 but for body, line 2"),
    ],
)
async def test_a_miss_says_what_differs_and_shows_recorded_words_to_the_log_alone(
    path: Path, caplog: pytest.LogCaptureFixture, method: str, url: str, body: bytes, why: str
) -> None:
    say = entry("http://a.example/say", "", "POST", request={"postData": {"text": "one\ntwo"}})
    write(path, entry("http://a.example/items?page=1"), post("http://a.example/buy", {"of": "clay", "n": 1}, ""), say)

    with pytest.raises(Unavailable) as told:
        await get(playing(path), url, method, body)

    assert str(told.value) == f"the cassette shop.har has no response to this request: {why}"
    assert ("recorded" in caplog.text and "asked" in caplog.text) == (" entry " in why)


async def test_an_entry_without_its_body_is_no_empty_response(path: Path) -> None:
    write(path, entry("http://a.example/", None, response={"content": {"size": 5}}))

    with pytest.raises(Unavailable, match="as entry 1, but its body isn't in the file"):
        await get(playing(path), "http://a.example/")


async def test_redirects_are_entries_and_each_is_judged(path: Path) -> None:
    moved = {"status": 302, "headers": [{"name": "Location", "value": "http://b.example/new"}]}
    write(path, entry("http://a.example/old", response=moved), entry("http://b.example/new", "here"))
    refused = PermissionDenied("not that host")
    permit = Permit(allow, follow, lambda to: refused if to.host == "b.example" else None)

    assert await get(playing(path), "http://a.example/old", redirects=1) == (200, b"here")
    with pytest.raises(PermissionDenied, match="not that host"):
        await get(playing(path), "http://a.example/old", redirects=1, permit=permit)


async def test_a_secret_of_the_kernel_that_was_recorded_is_redacted_and_bodies_are_charged(path: Path) -> None:
    write(path, entry("http://a.example/", "the key is sesame-open-now"))
    charged = list[tuple[int, int]]()

    def charge(requests: int, size: int, used: bool) -> None:
        charged.append((requests, size))

    permit = Permit(allow, follow, lambda to: None, redactor=lambda: Redactor(["sesame-open-now"]), charge=charge)
    status, body = await get(playing(path), "http://a.example/", permit=permit)

    assert (status, b"sesame" in body) == (200, False)
    assert charged == [(1, 0), (0, 26)]


async def test_a_used_up_budget_refuses_the_request_and_leaves_the_entry(path: Path) -> None:
    write(path, entry("http://a.example/", "one"))
    client = playing(path)

    def refuse(requests: int, size: int, used: bool) -> None:
        raise QuotaExceeded("no more")

    with pytest.raises(QuotaExceeded):
        await get(client, "http://a.example/", permit=Permit(allow, follow, lambda to: None, charge=refuse))
    assert await get(client, "http://a.example/") == (200, b"one")


async def test_what_is_written_to_the_file_later_reaches_no_agent(path: Path) -> None:
    """It may stand in the workspace of another agent, which writes to it before the first request."""
    client = playing(write(path, entry("http://a.example/", "recorded")))
    write(path, entry("http://a.example/", "planted"), entry("http://b.example/", "planted"))

    assert await get(client, "http://a.example/") == (200, b"recorded")
    with pytest.raises(Unavailable, match=r"nothing is recorded of http://b\.example"):
        await get(client, "http://b.example/")


async def test_a_redirect_to_an_address_that_rules_refuse_is_refused_though_it_is_recorded(path: Path) -> None:
    moved = {"status": 302, "headers": [{"name": "Location", "value": "http://10.0.0.7/keys"}]}
    write(path, entry("http://a.example/", response=moved), entry("http://10.0.0.7/keys", "here"))

    def judge_address(to: Destination) -> JudgeAddress:
        def judge(address: Address, port: int) -> None:
            raise PermissionDenied(f"{address} is private")

        return judge

    permit = Permit(judge_address, follow, lambda to: None)
    with pytest.raises(PermissionDenied, match=r"10\.0\.0\.7 is private"):
        await get(playing(path), "http://a.example/", redirects=1, permit=permit)


async def test_a_miss_with_a_large_body_takes_little_memory_of_its_own(path: Path) -> None:
    """As a list of its lines it took twenty times the body's size, for each request under way."""
    lines = "a b\n" * (1 << 20)
    client = playing(write(path, entry("http://a.example/", "", "POST", request={"postData": {"text": lines}})))
    body = f"{lines}other".encode()
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match=f"entry 1 but for body, line {(1 << 20) + 1}"):
            await get(client, "http://a.example/", "POST", body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * len(body)


async def test_bodies_that_are_no_text_are_told_by_their_sizes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sent = {"postData": {"text": "/w==", "encoding": "base64"}}
    client = playing(write(path, entry("http://a.example/", "", "POST", request=sent)))

    with pytest.raises(Unavailable, match=r"entry 1 but for body$"):
        await get(client, "http://a.example/", "POST", b"\xfe\xff")
    assert "body: recorded '1 bytes', asked '2 bytes'" in caplog.text


async def test_what_was_not_used_and_what_has_credentials_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cookie = {"headers": [{"name": "Cookie", "value": "session=canary"}]}
    write(path, entry("http://a.example/1"), entry("http://a.example/2", request=cookie), entry("wss://a.example/"))
    client = playing(path)
    await get(client, "http://a.example/1")
    assert client.cassette is not None
    client.cassette.close()

    assert "credentials are in headers of entries 2: no agent gets them" in caplog.text
    assert "no HTTP call can ask for entries 3" in caplog.text
    assert "1 of 2 responses were not used: entries 2" in caplog.text
    assert "canary" not in caplog.text
