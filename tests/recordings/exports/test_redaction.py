"""Listed texts are replaced in all their forms, and nothing else is."""

import json
import re
from base64 import b64decode, b64encode
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.recordings.exports.redaction import MAX_TEXTS, BadList, read_list
from tests.support.runs.rounds import rounds

from .forms import escape, list_encoded, list_parts, list_plain

PLAIN, HARD = "sk-canary-0123", 'pass "word" 1/2\\3 é😀\tend'


@pytest.mark.parametrize("text", [PLAIN, HARD])
def test_a_listed_text_is_replaced_in_all_its_forms(text: str) -> None:
    redaction = read_list(f"another one\n{text}\n")

    for form in list_plain(text):
        assert redaction.replace(b"say " + form + b" again") == "say ⟦redacted 2⟧ again".encode()
    for form in list_encoded(text):
        replaced = redaction.replace(b"say " + form + b" again")
        assert len(replaced) == len(form) + 10
        assert not [part for part in list_parts(text) if part in replaced]
    assert redaction.found == {text}


def test_what_is_beside_a_text_in_base64_stays() -> None:
    replaced = read_list(PLAIN).replace(b64encode(f"the key {PLAIN} is old".encode()))

    assert b64decode(replaced).replace(b"\0", b"").startswith(b"the key")
    assert b64decode(replaced).endswith(b"is old")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("json"), st.booleans()),
        st.tuples(st.just("base64"), st.integers(0, 5)),
    ),
    max_size=6,
).filter(lambda steps: sum(kind == "base64" for kind, _ in steps) <= 3)
TEXTS = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=4, max_size=30).filter(
    lambda text: not (text.startswith("/") and text.endswith("/"))
)


@settings(max_examples=rounds(50))
@given(TEXTS, STEPS)
def test_no_chain_of_encodings_hides_a_text(text: str, steps: list[tuple[str, int]]) -> None:
    made = f"<{text}>".encode()
    for kind, how in steps:
        made = (
            escape(made.decode(), 1, ascii_only=bool(how)).encode() if kind == "json" else b64encode(b"." * how + made)
        )

    replaced = read_list(text).replace(made)

    assert replaced != made
    for kind, how in reversed(steps):
        assert text.encode() not in replaced
        if kind == "json":
            with suppress(ValueError):  # zero bytes in base64 may take half of an escape with them
                replaced = json.loads(b'"%b"' % replaced, strict=False).encode()
        else:
            whole = re.sub(rb"[^A-Za-z0-9+/]", b"A", replaced.rstrip(b"="))
            replaced = b64decode(whole + b"A" * (-len(whole) % 4))[how:]
    assert text.encode() not in replaced


@settings(max_examples=rounds(50))
@given(st.binary(max_size=300), st.text(max_size=100))
def test_what_is_not_listed_stays(data: bytes, text: str) -> None:
    redaction = read_list("sk-canary-0123456789")

    for given_ in (data, b64encode(data), escape(text, 2).encode()):
        assert redaction.replace(given_) == given_


def test_what_a_pattern_matches_once_is_replaced_in_all_forms() -> None:
    redaction = read_list("/password: [^ ]+/\n/[a-z]+@example[.]com/")
    said = b'{"text": "the password: a\\"b/c and ada@example.com"}'
    hidden = b64encode(b"for bob@example.com only")
    for data in (said, hidden):
        assert redaction.collect(data) == data

    assert redaction.replace(said) == '{"text": "the ⟦redacted 1⟧ and ⟦redacted 2⟧"}'.encode()
    assert b"bob@" not in b64decode(redaction.replace(hidden))
    for form in list_encoded('password: a"b/c'):
        assert not [part for part in list_parts('password: a"b/c') if part in redaction.replace(form)]


def test_the_longer_of_two_texts_is_replaced_whole() -> None:
    redaction = read_list("canary\ncanary-and-more")

    assert redaction.replace(b"canary-and-more, canary") == "⟦redacted 2⟧, ⟦redacted 1⟧".encode()


def test_patterns_that_match_nothing_replace_nothing() -> None:
    redaction = read_list("/secret-[0-9]+/")
    redaction.collect(b"nothing")

    assert redaction.replace(b"nothing, c2VjcmV0LTEyMw==") == b"nothing, c2VjcmV0LTEyMw=="


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "there is none"),
        ("abcd\nabc", "line 2: expected a text of 4 to"),
        ("/(/", r"line 1: /\(/: "),
        ("/x*/", "matches an empty text"),
        ("\n" * 1000 + "text", "line 1001: expected at most 1,000 lines"),
        ("x" * 2_001, "got 2001"),
    ],
)
def test_a_list_that_can_not_be_used_says_which_line_and_why(written: str, said: str) -> None:
    with pytest.raises(BadList, match=said):
        read_list(written)


def test_a_pattern_that_matches_short_texts_or_too_many_is_refused() -> None:
    with pytest.raises(BadList, match=r"line 1: /\[0-9\]/ matches '7'"):
        read_list("/[0-9]/").collect(b"take 7")
    with pytest.raises(BadList, match="more than 5,000 texts"):
        read_list("/[0-9]+/").collect(" ".join(map(str, range(10_000, 10_001 + MAX_TEXTS))).encode())
    with pytest.raises(BadList, match="have 102,000 bytes together, more than 100,000"):
        read_list("\n".join(f"{number:03}" + "x" * 1997 for number in range(51))).replace(b"any")
