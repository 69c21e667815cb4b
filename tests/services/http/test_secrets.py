"""Secrets: where they are sent, and that no chunking of a response lets one through."""

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentos.permissions.patterns.domains import parse_domain_pattern
from agentos.services.http.destination import parse_destination
from agentos.services.http.secrets import (
    FORMER_VALUES,
    MARK,
    MAX_LENGTH,
    MIN_LENGTH,
    Redactor,
    Secrets,
    SecretSettings,
    UnreadableSecret,
    read_value,
)
from tests.support.runs.rows import each_row

VALUES = st.lists(st.text("abc-", min_size=1, max_size=6), min_size=1, max_size=4)
TOKEN = "ghp_0123456789abcdef"


def secret(*places: str, name: str = "github", source: str = "env:TOKEN") -> SecretSettings:
    return SecretSettings(name, tuple(map(parse_domain_pattern, places)), "Authorization", "Bearer ", source)


def holding(*settings: SecretSettings, proxied: bool = False) -> Secrets:
    secrets = Secrets(proxied)
    secrets.replace(settings, {each.name: f"{each.name}-{TOKEN}" for each in settings})
    return secrets


def cut(data: bytes, places: Sequence[int]) -> Sequence[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def redact(values: Sequence[str], parts: Sequence[bytes]) -> bytes:
    redactor = Redactor(values)
    return b"".join([*map(redactor.feed, parts), redactor.end()])


@given(VALUES, st.data())
def test_no_value_passes_however_a_body_is_cut(values: Sequence[str], data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(values) | st.text("abc- \n", max_size=4), max_size=12)
    body = "".join(data.draw(pieces)).encode()
    parts = cut(body, data.draw(st.lists(st.integers(0, 100))))

    found = redact(values, parts)

    assert not [value for value in values if value.encode() in found]
    assert found == redact(values, [body]), "the cuts make no difference"
    if not [value for value in values if value.encode() in body]:
        assert found == body, "nothing else is changed"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_bytes_that_are_no_value_stay(body: bytes, places: Sequence[int]) -> None:
    assert redact([TOKEN], cut(body, places)) == body


def test_a_long_body_is_passed_on_but_for_the_end_of_each_piece() -> None:
    redactor, kept = Redactor([TOKEN]), len(TOKEN) - 1

    assert redactor.feed(b"x" * 100_000) == b"x" * (100_000 - kept)
    assert redactor.feed(b"yghp_0123") == b"x" * 9
    assert redactor.feed(b"456789abcdefz") == b"x" * (kept - 9) + b"y" + MARK.encode()
    assert redactor.end() == b"z"


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"ghp_", b"ghp_0123", b"0123456789abcde"]), max_size=8))
def test_the_pieces_of_a_body_do_not_show_which_text_begins_a_value(parts: Sequence[bytes]) -> None:
    other = "Q" * len(TOKEN)
    one, another = Redactor([TOKEN]), Redactor([other])
    assume(TOKEN.encode() not in b"".join(parts) and other.encode() not in b"".join(parts))

    assert [one.feed(part) for part in parts] == [another.feed(part) for part in parts]


def test_a_line_is_passed_on_at_once() -> None:
    assert Redactor([TOKEN]).feed(b"data: ghp_0123\n\n") == b"data: ghp_0123\n\n"


def test_a_body_full_of_a_value_is_searched_for_one_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    made, values, escape = list[bytes](), [TOKEN, "another-value"], re.escape

    def count(value: bytes) -> bytes:
        made.append(value)
        return escape(value)

    monkeypatch.setattr(re, "escape", count)

    assert redact(values, [TOKEN.encode() * 100]) == MARK.encode() * 100
    assert len(made) <= len(values)


def test_texts_are_redacted_whole() -> None:
    redactor = Redactor([TOKEN, f"{TOKEN}x"])

    assert redactor.redact(f"a={TOKEN}xb={TOKEN}") == f"a={MARK}b={MARK}"
    assert redactor.redact("https://x/") == "https://x/"


@each_row(
    ("url", "sent"),
    [
        ("https://api.github.com/repos/x", True),
        ("https://api.github.com/", True),
        ("http://api.github.com/", False),
        ("https://api.github.com:8443/", False),
        ("https://api.github.com:80/", False),
        ("https://evil.com/", False),
        ("https://api.github.com.evil.com/", False),
        ("https://x.api.github.com/", False),
    ],
)
def test_a_secret_is_sent_over_tls_to_its_host_and_port_alone(url: str, sent: bool) -> None:
    secrets = holding(secret("api.github.com:443"))

    found = secrets.headers_for(["github"], parse_destination(f"GET {url}"))

    assert found == ([("Authorization", f"Bearer github-{TOKEN}")] if sent else [])


def test_methods_and_paths_limit_a_secret() -> None:
    secrets = holding(secret("GET,HEAD api.github.com:443/repos/**", "GET,HEAD api.github.com:443/user"))

    def is_sent(text: str) -> bool:
        return bool(secrets.headers_for(["github"], parse_destination(text)))

    assert is_sent("GET https://api.github.com/repos/x")
    assert is_sent("HEAD https://api.github.com/user")
    assert not is_sent("DELETE https://api.github.com/repos/x")
    assert not is_sent("GET https://api.github.com/gists")
    assert not is_sent("GET https://api.github.com/repos/../gists")
    assert not is_sent("GET https://api.github.com/repos/%2e%2e/gists")


@pytest.mark.parametrize("proxied", [False, True])
def test_without_tls_it_is_sent_to_loopback_addresses_of_this_host_alone(proxied: bool) -> None:
    secrets = holding(secret("127.0.0.1:8080", "[::1]:8080", "localhost:8080", "10.0.0.1:8080"), proxied=proxied)

    def is_sent(host: str) -> bool:
        return bool(secrets.headers_for(["github"], parse_destination(f"GET http://{host}:8080/")))

    assert [is_sent(host) for host in ("127.0.0.1", "[::1]")] == [not proxied] * 2
    assert not is_sent("localhost"), "a resolver may say something else"
    assert not is_sent("10.0.0.1")


def test_a_caller_gets_what_it_holds_and_of_one_header_the_first() -> None:
    secrets = holding(secret("x.com:443", name="one"), secret("x.com:443", name="two"))
    where = parse_destination("GET https://x.com/")

    assert secrets.headers_for([], where) == []
    assert secrets.headers_for(["two"], where) == [("Authorization", f"Bearer two-{TOKEN}")]
    assert secrets.headers_for(["two", "one"], where) == [("Authorization", f"Bearer one-{TOKEN}")]
    assert secrets.find_setter(["two"], where, "authorization") == "two"
    assert secrets.find_setter(["two"], where, "x-key") is None


def test_former_values_are_redacted_and_not_sent() -> None:
    secrets, settings = Secrets(), secret("x.com:443")
    for number in range(10):
        secrets.replace([settings], {"github": f"value-{number}"})

    [(_, sent)] = secrets.headers_for(["github"], parse_destination("GET https://x.com/"))
    assert sent == "Bearer value-9"
    hidden = [number for number in range(10) if secrets.redactor().redact(f"value-{number}") == MARK]
    assert hidden == [*range(9 - FORMER_VALUES, 10)]


def test_what_has_changed_is_named_and_no_value_is_shown() -> None:
    one, two = secret("x.com:443", name="one"), secret("y.com:443", name="two")
    secrets = Secrets()
    secrets.replace([one, two], {"one": TOKEN, "two": TOKEN})

    assert secrets.find_changed([one, two], {"one": TOKEN, "two": TOKEN}) == []
    assert secrets.find_changed([one], {"one": f"{TOKEN}2"}) == ["one", "two"]
    assert TOKEN not in repr(secrets) + repr(secrets._held) + repr(secrets.redactor())


def test_a_value_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)

    assert read_value(secret(), {"TOKEN": f" {TOKEN}"}) == TOKEN
    assert read_value(secret(source=f"file:{file}"), {}) == TOKEN


@each_row(
    "value",
    [None, "", "short", "x" * (MIN_LENGTH - 1), "x" * (MAX_LENGTH + 1), f"{TOKEN}\nX-Evil: 1", f"{TOKEN}é"],
)
def test_a_value_that_no_header_can_have_is_refused_without_showing_it(value: str | None) -> None:
    with pytest.raises(UnreadableSecret) as caught:
        read_value(secret(), {"TOKEN": value} if value is not None else {})

    assert caught.value.name == "github"
    assert "TOKEN" in str(caught.value)
    assert not value or value not in str(caught.value)


def test_a_file_that_others_may_read_or_write_or_that_is_none_is_refused(tmp_path: Path) -> None:
    readable, writable, fifo, none = (tmp_path / name for name in ("readable", "writable", "fifo", "none"))
    for file, mode in ((readable, 0o644), (writable, 0o602)):
        file.write_text(TOKEN)
        file.chmod(mode)
    os.mkfifo(fifo, 0o600)

    for path, why in ((readable, "chmod"), (writable, "chmod"), (fifo, "not a file"), (none, "No such file")):
        with pytest.raises(UnreadableSecret, match=why):
            read_value(secret(source=f"file:{path}"), {})
