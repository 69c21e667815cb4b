"""Bodies and replies as JSON: msgspec and the standard library read and write the same."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos_sdk.calls import agents, connection, host, inspect, messages, think
from agentos_sdk.calls.operator import audit, permissions
from agentos_sdk.encoding.codec import Invalid, decode, encode, has_plain_fields, parse, read
from agentos_sdk.encoding.quantities import CpuShare, Seconds, Size
from agentos_sdk.encoding.strict import Text, wire_name
from tests.support.runs.rows import each_row

REQUESTS: Sequence[type] = [
    value
    for module in (agents, audit, connection, host, inspect, messages, permissions, think)
    for value in vars(module).values()
    if attrs.has(value) and "op" in vars(value)
]
PLAIN: Sequence[type] = [host.Content, host.Output, messages.Sent, messages.Delivered, connection.Welcome, think.Image]
PLAIN = [
    *PLAIN,
    agents.Killed,
    agents.Exited,
    agents.AgentInfo,
    audit.AuditConfig,
    inspect.Spent,
    permissions.Explained,
]
NUMBERS = st.integers(-2, 3) | st.sampled_from([(1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 64, 10**40])
WORDS = st.sampled_from(["a", "b/c", "", "\0", "é", "\ud800", "5s", "256M", "50%", "aGk=", "image/png", "infinity"])
REALS = st.floats() | st.sampled_from([0.5, 1.0, 2.0, -0.0, 1e300, 5e-324])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | REALS | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
PIECES = ["[", "]", "{", "}", '"', ":", ",", "\\", "1", "-", ".", "e", " ", "\t", "\n", "\x01", "é", "\0", "\ufeff"]
PIECES += ["1e999", "1e30", "NaN", "Infinity", "null", "true", "\\u0000", "\\ud800", "\\ud83d\\ude00", "\\u0061", "01"]
PIECES += ["9" * 25, "[" * 70, "[" * 1200, "//", "\\x", '"path":', '"name":"x",']


@cache
def data_of(kind: Any) -> st.SearchStrategy[Any]:
    """JSON values that mostly match a type."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return data_of(of[0])
    if origin is Literal:
        return st.sampled_from(of)
    if origin in (Union, UnionType):
        return st.one_of([data_of(each) for each in of])
    if origin in (list, tuple, Sequence):
        return st.lists(data_of(of[0]), max_size=2)
    if origin in (dict, Mapping):
        return st.dictionaries(WORDS, data_of(of[1]), max_size=2)
    if attrs.has(kind):
        return st.lists(fields_of(kind), max_size=4).map(dict)
    plain = {str: WORDS, Text: WORDS, int: NUMBERS, bool: st.booleans(), float: REALS, NoneType: st.none()}
    return plain.get(kind, NUMBERS | REALS | WORDS if kind in (Seconds, Size, CpuShare) else ANYTHING)


@cache
def fields_of(cls: type) -> st.SearchStrategy[tuple[str, Any]]:
    fields = attrs.fields(attrs.resolve_types(cls))
    known = [st.tuples(st.just(wire_name(each.name)), data_of(each.type) | ANYTHING) for each in fields]
    return st.one_of([*known, st.tuples(st.sampled_from(["as_", "async_", "naem", ""]), ANYTHING)])


def values(cls: type) -> st.SearchStrategy[Any]:
    fields = attrs.fields(attrs.resolve_types(cls))
    data = st.fixed_dictionaries({each.name: data_of(each.type) for each in fields})
    return data.map(lambda each: _decoded(cls, each)).filter(lambda value: value is not None)


def _decoded(cls: type, data: object) -> Any:
    try:
        return decode(cls, data)
    except Invalid:
        return None


def body_of(fields: Sequence[tuple[str, Any]], ascii: bool) -> str:
    """A JSON object; unlike a dict it may have a name twice."""
    pairs = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=ascii)}" for name, value in fields)
    return "{" + ", ".join(pairs) + "}"


@st.composite
def bodies(draw: st.DrawFn, cls: type) -> bytes:
    """Bodies of a request, some with pieces put in, taken out or replaced."""
    needed = [
        draw(st.tuples(st.just(wire_name(each.name)), data_of(each.type)))
        for each in attrs.fields(attrs.resolve_types(cls))
        if each.default is attrs.NOTHING
    ]
    text = body_of(needed + draw(st.lists(fields_of(cls), max_size=4)), draw(st.booleans()))
    for at, gone, piece in draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.sampled_from(PIECES)), max_size=2)
    ):
        text = text[:at] + piece + text[at + gone :]
    return text.encode("utf-8", "surrogatepass")


def plainly(body: bytes) -> object:
    """The standard library's reading, where it can read it."""

    def refuse(name: str) -> object:
        raise ValueError(name)

    def finite(digits: str) -> float:
        if abs(number := float(digits)) == float("inf"):
            raise ValueError(digits)
        return number

    return json.loads(body.decode(), parse_constant=refuse, parse_float=finite)


def strictly(cls: type, body: bytes) -> str:
    """What the strict rules make of a body: a value, or the mistakes; as text, in which 1, 1.0 and true differ."""
    try:
        return repr(attrs.astuple(decode(cls, parse(body)), recurse=True))
    except Invalid as error:
        return str(error)


@given(st.sampled_from(REQUESTS).flatmap(lambda cls: st.tuples(st.just(cls), bodies(cls))))
def test_fields_that_are_parsed_one_by_one_are_read_as_the_whole_body_is(
    request_and_body: tuple[type, bytes],
) -> None:
    cls, body = request_and_body
    try:
        found = repr(attrs.astuple(read(cls, body, {"a field that isn't there"}), recurse=True))
    except Invalid as error:
        found = str(error)

    assert found == strictly(cls, body)


@example(b'{"agent": 1e9990, "agent": 1}')
@given(bodies(permissions.Explain) | st.lists(st.sampled_from(PIECES), max_size=9).map("".join).map(str.encode))
def test_json_is_what_the_standard_library_reads(body: bytes) -> None:
    try:
        found: object = repr(parse(body))
    except Invalid as error:
        found = Invalid
        if "nested" in str(error):
            return
    try:
        expected: object = repr(plainly(body))
    except ValueError:
        expected = Invalid

    assert found == expected


@given(st.sampled_from(PLAIN).flatmap(values))
def test_a_plain_value_is_written_as_the_standard_library_writes_it(value: Any) -> None:
    assert encode(value) == json.dumps(attrs.asdict(value), ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("text", ["".join(map(chr, range(0x300))), '/"\\', "\u2028\uffff\U0001f600"])
def test_text_is_escaped_as_the_standard_library_does_it(text: str) -> None:
    assert encode(text) == json.dumps(text, ensure_ascii=False).encode()


@pytest.mark.parametrize("cls", [host.Content, messages.Sent, messages.Registered, agents.Killed])
def test_common_replies_are_written_by_msgspec(cls: type) -> None:
    assert has_plain_fields(cls)


@each_row("cls", [agents.AgentInfo, connection.Hello, messages.Message, think.Thought, agents.TreeReply])
def test_others_are_not(cls: type) -> None:
    assert not has_plain_fields(cls)


def test_a_raw_field_is_kept_as_it_is_written() -> None:
    spaced, half = b'{"to": 1, "message": {"a" : 1.50} }', b'{"to": 1, "message": "\\ud800"}'

    assert read(messages.Send, spaced, ["message"]).message == msgspec.Raw(b'{"a" : 1.50}')
    assert read(messages.Send, half, ["message"]).message == msgspec.Raw(b'"\\ud800"')


def test_a_bug_in_a_class_is_not_taken_for_a_mistake_in_the_data() -> None:
    @attrs.frozen
    class Broken:
        name: str

        def __attrs_post_init__(self) -> None:
            raise TypeError("a bug")

    with pytest.raises(TypeError):
        read(Broken, b'{"name":"x"}')
