"""One member is set in a client's configuration file, and nothing else of it changes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.userland.mcp.json_edit import NotJSON, get_member, set_member
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row

SERVER = {"command": "agentos", "args": ["mcp"]}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
TABLES = st.dictionaries(st.text(max_size=8), VALUES, max_size=3)
INDENTS = st.sampled_from([None, 0, 2, 4, "\t"])


@settings(max_examples=rounds(40))
@given(TABLES, TABLES | st.none(), st.text(max_size=5), VALUES, INDENTS, st.booleans())
def test_the_member_is_set_and_every_other_is_as_before(
    file: dict[str, Any], servers: Any, name: str, value: Any, indent: Any, windows: bool
) -> None:
    file = {key: other for key, other in file.items() if key != "servers"}
    before = json.dumps(file if servers is None else file | {"servers": servers}, indent=indent)
    before = before.replace("\n", "\r\n") if windows else before

    after = set_member(before, "servers", name, value)

    assert json.loads(after) == file | {"servers": (servers or {}) | {name: value}}
    assert get_member(after, "servers", name) == value


@settings(max_examples=rounds(40))
@given(TABLES, TABLES, INDENTS)
def test_a_new_member_removes_no_character(file: dict[str, Any], servers: dict[str, Any], indent: Any) -> None:
    servers.pop("agentos", None)
    before = json.dumps(file | {"servers": servers}, indent=indent)

    after = iter(set_member(before, "servers", "agentos", SERVER))

    assert all(char in after for char in before)  # in this order: each search goes on behind the one before


def test_comments_and_trailing_commas_stay() -> None:
    before = """\
// my servers
{
    "inputs": [], /* none, yet */
    "servers": {
        "github": { "url": "https://example.com/}" }, // "quoted": {
        // "old": {},
    },
}
"""

    after = set_member(before, "servers", "agentos", {"command": "x"})

    assert (
        after
        == """\
// my servers
{
    "inputs": [], /* none, yet */
    "servers": {
        "github": { "url": "https://example.com/}" }, // "quoted": {
        "agentos": {
            "command": "x"
        },
        // "old": {},
    },
}
"""
    )


def test_a_comment_stays_with_the_member_that_it_is_behind() -> None:
    after = set_member('{\n  "servers": {\n    "a": 1 // one\n  }\n}\n', "servers", "b", 2)

    assert after == '{\n  "servers": {\n    "a": 1, // one\n    "b": 2\n  }\n}\n'


@each_row("before", ["", "\n", "{}", "{}\n", "{ }", '{"servers": {}}', '{\n  "servers": {\n  }\n}\n'])
def test_an_empty_file_gets_the_table(before: str) -> None:
    assert json.loads(set_member(before, "servers", "agentos", SERVER)) == {"servers": {"agentos": SERVER}}


def test_a_member_that_is_there_is_replaced() -> None:
    before = '{\n\t"servers": {\n\t\t"agentos": { "command": "old" }, // ours\n\t\t"b": 1\n\t}\n}'

    after = set_member(before, "servers", "agentos", {"command": "new"})

    assert after == '{\n\t"servers": {\n\t\t"agentos": {\n\t\t\t"command": "new"\n\t\t}, // ours\n\t\t"b": 1\n\t}\n}'


def test_a_member_with_comments_is_read() -> None:
    text = '{"servers": {"a": {"x": [1, 2, /* 3 */ ], "url": "http://x//y,]", // z\n },},}'

    assert get_member(text, "servers", "a") == {"x": [1, 2], "url": "http://x//y,]"}
    assert get_member(text, "servers", "b") is None


@each_row(
    ("text", "why"),
    [
        ("[]", "expected a JSON object"),
        ("{", "line 1: expected a value, but the text ends"),
        ('{"servers": []}', "line 1: servers: expected an object"),
        ('{"servers": {"a": 1}}\n{}', "line 2: expected nothing behind the object"),
        ('{\n"servers": {"a" 1}}', "line 2: expected a :"),
        ('{"servers": {"a": }}', "expected a value"),
        ('{"servers": {"a": "x}}', "Unterminated string"),
        ('{"servers": {"a": 1 "b": 2}}', "expected a , or }"),
        ('{"servers": {}, "servers": {}}', "servers is there twice"),
        ('{"servers": {"a": [1}', "line 1: expected a value"),
        ("/* open", "expected a JSON object"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(NotJSON) as refused:
        set_member(text, "servers", "agentos", SERVER)

    assert why in str(refused.value)
