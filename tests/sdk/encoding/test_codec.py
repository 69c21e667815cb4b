import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.calls.agents import Spawn
from agentos_sdk.encoding.codec import (
    PIECE_ITEMS,
    CpuShare,
    Invalid,
    Rule,
    Seconds,
    Size,
    Text,
    decode,
    encode,
    encode_pieces,
    is_deeper,
    parse,
)
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE


@frozen
class Limits:
    memory: Size | None = None
    cpu: CpuShare | None = None


@frozen
class Patience:
    first: Seconds = field(default=Seconds(0))

    def __attrs_post_init__(self) -> None:
        if self.first > 60:
            raise ValueError("nobody waits longer than a minute")


@frozen
class Job:
    name: str
    count: int = 1
    weight: float = 1.0
    hurry: bool = False
    restart: Literal["permanent", "transient", "temporary"] = "temporary"
    shutdown: Seconds | Literal["brutal_kill", "infinity"] = "infinity"
    room: int | Size = 0
    note: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(factory=dict)
    port: Annotated[int, Rule(lambda port: 0 < port < 65536, "a port from 1 to 65535")] = 80
    limits: Limits = Limits()
    patience: Patience | None = None
    parts: Sequence["Job"] = ()
    message: object = None
    content: Text | None = None


# What json can say, and a little more than parse lets through.
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["5s", "256M", "50%"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
FIELDS = [each.name for each in Job.__attrs_attrs__]


def wrong(cls: type, data: object, where: str = "") -> str:
    with pytest.raises(Invalid) as caught:
        decode(cls, data, where=where)
    return str(caught.value)


def refused(data: bytes) -> str:
    with pytest.raises(Invalid) as caught:
        parse(data)
    return str(caught.value)


def test_a_value_is_made_of_what_json_says() -> None:
    body = b'{"name": "w", "limits": {"memory": "256M"}, "shutdown": "200ms", "weight": 2, "args": ["-v"]}'

    job = decode(Job, parse(body))

    assert job == Job("w", limits=Limits(Size(256 << 20)), shutdown=Seconds(0.2), weight=2.0, args=("-v",))


@each_row(
    ("said", "sentence"),
    [
        ({"name": 5}, "name: expected a string, got 5"),
        ({"name": None}, "name: expected a string, got null"),
        ({"name": "a\0b"}, "name: expected a string, got a NUL character in one"),
        ({"name": "\ud800"}, "name: expected a string, got half of a surrogate pair in one"),
        ({"count": "5"}, "count: expected a whole number, got '5'"),
        ({"count": 5.0}, "count: expected a whole number, got 5.0"),
        ({"count": True}, "count: expected a whole number, got true"),
        ({"count": 1 << 64}, "count: expected a whole number, got a very large number"),
        ({"count": 16**9000}, "count: expected a whole number, got a very large number"),
        ({"weight": math.nan}, "weight: expected a number, got nan"),
        ({"weight": False}, "weight: expected a number, got false"),
        ({"hurry": 1}, "hurry: expected true or false, got 1"),
        ({"restart": "permnent"}, "restart: expected permanent, transient or temporary, got 'permnent'"),
        ({"restart": ["permanent"]}, "restart: expected permanent, transient or temporary, got an array"),
        ({"shutdown": "soon"}, "shutdown: expected a duration such as 5s, brutal_kill or infinity, got 'soon'"),
        ({"patience": {"first": 1e308}}, "patience.first: expected a duration of at most 100 years, got 1e+308"),
        ({"patience": {"first": "99999d"}}, "patience.first: expected a duration of at most 100 years, got '99999d'"),
        ({"room": "lots"}, "room: expected a whole number or a size such as 256M, got 'lots'"),
        ({"note": 5}, "note: expected a string, got 5"),
        ({"args": "oops"}, """args: expected ["oops"], got 'oops'"""),
        ({"args": "sh -c 'a b'"}, """args: expected ["sh", "-c", "a b"], got "sh -c 'a b'\""""),
        ({"args": "it's"}, """args: expected an array, got "it's\""""),
        ({"args": ""}, "args: expected an array, got ''"),
        ({"args": "a\x1bb"}, "args: expected an array, got 'a\\x1bb'"),
        ({"args": "x" * 61}, f"args: expected an array, got '{'x' * 60}…'"),
        (
            {"restart": "on-failure"},
            "restart: expected permanent, transient or temporary, got 'on-failure', did you mean transient?",
        ),
        ({"limits": {"mem": 1}}, "limits.mem: unknown field, did you mean memory?"),
        ({"args": {"0": "a"}}, "args: expected an array, got keys and values"),
        ({"args": ["a", 5]}, "args[1]: expected a string, got 5"),
        ({"env": ["A=b"]}, "env: expected keys and values, got an array"),
        ({"env": {"A": 1}}, "env.A: expected a string, got 1"),
        ({"env": {"a b": 1}}, "env['a b']: expected a string, got 1"),
        ({"port": 0}, "port: expected a port from 1 to 65535, got 0"),
        ({"port": "http"}, "port: expected a whole number, got 'http'"),
        ({"limits": {"memory": "lots"}}, "limits.memory: expected a size such as 256M, got 'lots'"),
        ({"limits": {"memry": 1}}, "limits.memry: unknown field, did you mean memory?"),
        ({"limits": []}, "limits: expected keys and values, got an empty array"),
        ({"patience": {"first": "5m"}}, "patience: nobody waits longer than a minute"),
        ({"parts": [{"name": "a"}, {"parts": [{}], "name": "b"}]}, "parts[1].parts[0].name: required field missing"),
        ({"zzz": 1}, "zzz: unknown field"),
        ({"restart": "x" * 1000}, f"restart: expected permanent, transient or temporary, got '{'x' * 60}…'"),
    ],
)
def test_a_mistake_names_its_field_and_what_was_expected(said: dict[str, object], sentence: str) -> None:
    assert wrong(Job, {"name": "w", **said}) == sentence


def test_all_mistakes_are_told_at_once() -> None:
    data = {"limits": {"memory": "lots"}, "count": "1"}

    assert wrong(Job, data) == (
        "name: required field missing; count: expected a whole number, got '1'; "
        "limits.memory: expected a size such as 256M, got 'lots'"
    )


def test_a_mistake_gives_its_path_to_people_and_its_keys_to_programs() -> None:
    with pytest.raises(Invalid) as caught:
        decode(Job, {"name": "a", "parts": [{"name": 1}]}, where="jobs")

    [mistake] = caught.value.mistakes
    assert mistake.path == "jobs.parts[0].name"
    assert mistake.keys == ("parts", 0, "name")


def test_a_message_may_hold_what_no_name_may() -> None:
    message = {"text": "a\0b \ud800", "deep": [{"x": None}]}

    assert decode(Job, {"name": "w", "message": message}).message is message
    assert decode(Job, {"name": "w", "content": "a\0b"}).content == "a\0b"


def test_thousands_of_mistakes_cost_no_more_than_the_first_twenty() -> None:
    for data in ({"name": "w", "args": [1] * 100_000}, {f"k{n}": 1 for n in range(100_000)}):
        with pytest.raises(Invalid) as caught:
            decode(Job, data)

        assert len(caught.value.mistakes) <= 22
        assert "more" in str(caught.value)


def test_a_bug_in_a_class_is_not_blamed_on_the_data() -> None:
    @frozen
    class Broken:
        def __attrs_post_init__(self) -> None:
            raise LookupError("ours")

    with pytest.raises(LookupError, match="ours"):
        decode(Broken, {})


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), ANYTHING) | ANYTHING)
def test_anything_is_decoded_or_refused_as_invalid(data: object) -> None:
    try:
        job, said = decode(Job, data), ""
    except Invalid as error:
        job, said = None, str(error)

    assert isinstance(job, Job) or 0 < len(said) < 10_000


@given(st.dictionaries(st.sampled_from([each.name for each in Spawn.__attrs_attrs__]), ANYTHING))
def test_anything_as_a_spawn_is_decoded_or_refused_as_invalid(data: object) -> None:
    with suppress(Invalid):
        assert isinstance(decode(Spawn, data), Spawn)


@given(ANYTHING)
def test_what_is_encoded_is_parsed_again(value: object) -> None:
    try:
        written = encode(value)
    except ValueError:  # JSON has no word for nan and infinity
        assert "nan" in repr(value) or "inf" in repr(value)
        return

    assert parse(written) == value


@given(
    st.builds(
        Job,
        name=st.just("w"),
        weight=st.floats(0, 1e9),
        args=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))).map(tuple),
        limits=st.builds(Limits, memory=st.none() | st.integers(0, 1 << 62).map(Size)),
        parts=st.lists(st.just(Job("part", note="é")), max_size=2).map(tuple),
        shutdown=st.floats(0, 1e6).map(Seconds) | st.sampled_from(["brutal_kill", "infinity"]),
    )
)
def test_a_value_survives_the_wire(job: Job) -> None:
    assert decode(Job, parse(encode(job))) == job


def test_a_share_of_a_cpu_survives_the_wire_although_its_unit_there_is_another() -> None:
    assert parse(encode(Limits(cpu=CpuShare(0.5)))) == {"memory": None, "cpu": 50_000}
    assert decode(Limits, parse(encode(Limits(cpu=CpuShare(0.5))))) == Limits(cpu=CpuShare(0.5))


def test_encoding_writes_compact_utf8_and_omits_nothing() -> None:
    assert encode(Limits()) == b'{"memory":null,"cpu":null}'
    assert encode({"é": (1, [Patience()])}) == '{"é":[1,[{"first":0}]]}'.encode()


def test_every_mapping_and_sequence_is_encoded() -> None:
    assert encode({"a": MappingProxyType({"b": range(2)})}) == b'{"a":{"b":[0,1]}}'


def test_half_of_a_surrogate_pair_is_escaped() -> None:
    assert encode({"a": "é\ud83d"}) == rb'{"a":"\u00e9\ud83d"}'


def test_what_json_cannot_say_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="bytes can't be written as JSON"):
        encode({"a": b""})
    with pytest.raises(ValueError):
        encode({"a": math.inf})


@each_row(
    ("body", "sentence"),
    [
        (b"", "not JSON: expecting value at byte 0"),
        (b'{"a": 1,}', "not JSON: expecting property name enclosed in double quotes at byte 8"),
        ('{"é": 1 2}'.encode(), "not JSON: expecting ',' delimiter at byte 9"),
        (b'["\x01"]', "not JSON: invalid control character at byte 2"),
        (b"1 2", "not JSON: extra data at byte 2"),
        (b'"\xff"', "not JSON: not UTF-8 at byte 1"),
        (b'"\xed\xa0\x80"', "not JSON: not UTF-8 at byte 1"),
        ('"é"'.encode("utf-16"), "not JSON: not UTF-8 at byte 0"),
        (b"[NaN]", "not JSON: NaN is not a number"),
        (b"-Infinity", "not JSON: -Infinity is not a number"),
        (b"1e999", "not JSON: a number is too large"),
        (b"9" * 5000, "not JSON: a number has too many digits"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (b"[" * 1_000_000, "nested deeper than 64"),
    ],
)
def test_what_is_not_json_is_refused_with_one_sentence(body: bytes, sentence: str) -> None:
    assert refused(body) == sentence


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 64 + b"]" * 64,
        b"[" + b"[]," * 100 + b"[]]",
        json.dumps({"text": "[{" * 100}).encode(),
        json.dumps({'[["\\': ['\\"[[\\\\' * 50]}).encode(),
    ],
)
def test_many_brackets_are_fine_as_long_as_they_are_not_deep(body: bytes) -> None:
    assert parse(body) == json.loads(body)


@given(ANYTHING, st.integers(55, 75))
def test_depth_is_counted_as_json_nests_it(inner: object, wraps: int) -> None:
    def depth(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    body = b'["[",' * wraps + json.dumps(inner).encode() + b"]" * wraps
    try:
        parse(body)
        said = ""
    except Invalid as error:
        said = str(error)

    assert ("deeper" in said) == (wraps + depth(inner) > 64)


@given(st.binary() | st.text('[]{}",:\\u123e.- ').map(str.encode))
def test_any_bytes_are_parsed_or_refused_as_invalid(body: bytes) -> None:
    with suppress(Invalid):
        encode(parse(body))


def test_a_mebibyte_of_brackets_is_answered_at_once() -> None:
    started = time.thread_time()

    refused(b"[" * (1 << 20))
    parse(b"[" + b",".join([b"[" * 63 + b"]" * 63] * 8000) + b"]")

    assert time.thread_time() - started < PATIENCE  # with the square of the length it would take hours


@pytest.mark.parametrize(("data", "depth"), [([], 1), ({"a": 1}, 1), ([[]], 2), ([{"a": [1]}, 2], 3)])
def test_how_deep_data_is_nested_can_be_asked(data: object, depth: int) -> None:
    assert is_deeper(data, depth - 1)
    assert not is_deeper(data, depth)


@given(
    st.lists(ANYTHING | st.just(Job("w", args=("x",) * 3)), max_size=3),
    st.sampled_from([1, PIECE_ITEMS, PIECE_ITEMS + 1, 250]),
)
def test_the_pieces_of_a_long_value_are_its_json(items: list[Any], times: int) -> None:
    values: list[object] = [items * times, tuple(items) * times, {"a": items * times}]
    values += [Job("w", message=items * times, parts=[Job("v")] * times), Job("w", limits=Limits(), weight=2.0)]
    for value in values:
        with suppress(ValueError):  # numbers that JSON can't say
            assert b"".join(encode_pieces(value)) == encode(value)


def test_a_long_sequence_is_written_a_step_at_a_time() -> None:
    pieces = list(encode_pieces(Job("w", message=[1] * 1000)))

    assert max(map(len, pieces)) <= 2 * PIECE_ITEMS + 1
