"""HAR files as browsers and mitmproxy write them, and those that can't be used."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from agentos.services.http.har import MAX_CONTAINERS, MAX_FILE_BYTES, Archive, BadHar, read_har

Json = dict[str, Any]


def entry(url: str, text: str | None = "", method: str = "GET", **more: Any) -> Json:
    """One as Chromium writes it, with keys that aren't read."""
    content = {"size": len((text or "").encode()), "mimeType": "text/plain", "compression": 7}
    return {
        "_initiator": {"type": "other"},
        "startedDateTime": "2026-11-29T08:00:00.000Z",
        "time": 12.5,
        "request": {
            "method": method, "url": url, "httpVersion": "h2", "headers": [], "queryString": [], "cookies": [],
            "headersSize": -1, "bodySize": 0, **more.get("request", {}),
        },
        "response": {
            "status": 200, "statusText": "", "httpVersion": "h2", "headers": [], "cookies": [], "redirectURL": "",
            "headersSize": -1, "bodySize": -1, "content": content | ({} if text is None else {"text": text}),
            **more.get("response", {}),
        },
        "cache": {}, "timings": {"send": 0, "wait": 12, "receive": 0.5},
    }  # fmt: skip


def write(path: Path, *entries: Json) -> Path:
    path.write_text(json.dumps({"log": {"version": "1.2", "creator": {}, "pages": [], "entries": [*entries]}}))
    return path


def read(tmp_path: Path, *entries: Json) -> Archive:
    return read_har(write(tmp_path / "a.har", *entries))


def test_a_body_is_the_text_or_its_base64_and_headers_of_how_it_was_sent_are_gone(tmp_path: Path) -> None:
    packed = {"text": base64.b64encode(b"\x00\xff").decode(), "encoding": "base64", "size": 2}
    sent = [
        {"name": ":status", "value": "200"},
        {"name": "Content-Encoding", "value": "br"},
        {"name": "content-length", "value": "3"},
        {"name": "transfer-encoding", "value": "chunked"},
        {"name": "Vary", "value": "accept\norigin"},
    ]
    one, two, head = read(
        tmp_path,
        entry("https://shop.example/a?b=1#part", "grün", response={"headers": sent}),
        entry("https://shop.example:8443/b", response={"content": packed}),
        entry("https://shop.example/c", None, "HEAD", response={"headers": sent[2:3]}),
    ).entries

    assert (one.hop.url, one.response.body) == ("https://shop.example/a?b=1", "grün".encode())
    assert one.response.headers == [("Vary", "accept"), ("Vary", "origin")]
    assert (two.hop.destination.port, two.response.body) == (8443, b"\x00\xff")
    assert head.response.headers == [("content-length", "3")]


def test_a_text_with_a_character_for_each_byte_is_these_bytes(tmp_path: Path) -> None:
    """As mitmproxy writes a body that has no charset, and a browser a page that isn't in UTF-8."""
    data = "grün".encode()
    contents = [{"size": 5, "text": data.decode("latin-1")}, {"size": 4, "text": "grün"}, {"size": 5, "text": "grün"}]
    found = read(tmp_path, *(entry("http://a.example/", response={"content": one}) for one in contents))

    assert [one.response.body for one in found.entries] == [data, "grün".encode("latin-1"), data]


def test_a_response_that_has_no_body_gets_none_from_a_content(tmp_path: Path) -> None:
    """A body behind HEAD, 204 or 304 is none that a server can send."""
    content = {"content": {"size": 3, "text": "abc"}}
    found = read(
        tmp_path,
        entry("http://a.example/", "abc", "HEAD"),
        *(entry("http://a.example/", response={"status": status, **content}) for status in (204, 304)),
    )

    assert [one.response.body for one in found.entries] == [b"", b"", b""]


def test_a_requests_body_is_its_text_or_its_form(tmp_path: Path) -> None:
    form = {"mimeType": "application/x-www-form-urlencoded; charset=UTF-8", "params": [{"name": "a b", "value": "ü"}]}
    upload = {"mimeType": "multipart/form-data", "params": [{"name": "file"}]}
    bodies = [{"text": '{"a": 1}'}, {"text": "/w==", "encoding": "base64"}, form, upload, {"mimeType": ""}]
    found = read(tmp_path, *(entry("http://a.example/", "", "POST", request={"postData": one}) for one in bodies))

    assert [one.body for one in found.entries] == [b'{"a": 1}', b"\xff", b"a+b=%C3%BC", None, b""]


def test_what_got_no_response_or_lost_its_body_says_so(tmp_path: Path) -> None:
    blocked, lost, empty, unchanged = read(
        tmp_path,
        entry("http://a.example/blocked", None, response={"status": 0}),
        entry("http://a.example/lost", None, response={"content": {"size": 9000, "mimeType": "text/html"}}),
        entry("http://a.example/empty", None),
        entry("http://a.example/same", None, response={"status": 304, "content": {"size": 9000}}),
    ).entries

    assert blocked.response.missing == "it got no response"
    assert lost.response.missing == "its body isn't in the file: save it with contents"
    assert empty.response.missing is unchanged.response.missing is None


def test_no_credential_is_kept_and_its_entries_are_named(tmp_path: Path) -> None:
    token = {"name": "Authorization", "value": "Bearer canary"}
    cookie = {"name": "set-cookie", "value": "session=canary"}
    found = read(
        tmp_path,
        entry("http://a.example/1"),
        entry("http://a.example/2", request={"headers": [token]}),
        entry("http://a.example/3", response={"headers": [cookie]}),
        entry("http://user:canary@a.example/4"),
        entry("wss://a.example/5"),
        entry("data:text/plain,hi"),
    )

    assert (found.credentials, found.left_out) == ([2, 3], [4, 5, 6])
    assert "canary" not in repr([(one.hop, one.response.headers) for one in found.entries])


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"request": {"url": 7}}, "entry 2: Expected `str`, got `int` - at `$.request.url`"),
        ({"request": {"postData": {"text": "x", "encoding": "hex"}}}, "entry 2: request.postData.encoding: expected"),
        ({"response": {"status": "200"}}, "entry 2: Expected `int`, got `str` - at `$.response.status`"),
        ({"response": {"status": 10**30}}, "entry 2: "),
        ({"response": {"status": 600}}, "entry 2: response.status: expected at most 599"),
        ({"response": {"headers": [{"name": "a b", "value": ""}]}}, "entry 2: response.headers: 'a b'"),
        ({"response": {"headers": [{"name": "a", "value": "\x1b[2J"}]}}, "entry 2: response.headers: 'a'"),
        ({"response": {"headers": [{"name": "a", "value": "b"}] * 201}}, "entry 2: response.headers: expected at most"),
        ({"response": {"headers": [{"name": "a", "value": "b" * 70_000}]}}, "entry 2: response.headers: expected"),
        ({"response": {"content": {"text": "%", "encoding": "base64"}}}, "entry 2: response.content.text: no base64"),
    ],
)
def test_a_mistake_names_its_entry_and_field(tmp_path: Path, broken: Json, why: str) -> None:
    with pytest.raises(BadHar) as told:
        read(tmp_path, entry("http://a.example/"), entry("http://a.example/", **broken))

    assert why in str(told.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no HAR"),
        (b"GET / HTTP/1.1", "no HAR"),
        (b"[]", "no HAR: Expected `object`, got `array`"),
        (b'{"log": {}}', "no HAR: Object missing required field `entries`"),
        (b"\xff\xfe", "no HAR"),
        (b'{"log": {"entries": ' + b"[" * 100_000, "nested deeper than 32 levels"),
        (b'{"log": {"entries": [' + b"{}," * MAX_CONTAINERS + b"{}]}}", "more than 1,000,000 arrays and objects"),
        (b'{"log": {"entries": [' + b"1," * 10_000 + b"1]}}", "log.entries: expected at most 10,000, got 10,001"),
        (b" " * (MAX_FILE_BYTES + 1), "longer than 64 MiB"),
    ],
    ids=str.split("empty text array without bytes deep wide many long"),
)
def test_what_is_no_har_is_refused_whole(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "a.har").write_bytes(data)

    with pytest.raises(BadHar, match=r"a\.har") as told:
        read_har(tmp_path / "a.har")

    assert why in str(told.value)


def test_a_mark_at_the_begin_is_no_mistake_and_a_missing_file_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.har", entry("http://a.example/"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert len(read_har(path).entries) == 1
    with pytest.raises(BadHar, match=r"b\.har can't be read: No such file"):
        read_har(tmp_path / "b.har")
