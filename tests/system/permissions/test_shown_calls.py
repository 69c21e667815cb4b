"""What a person sees of calls that have no text of their own: all that is done if it is allowed."""

import base64
from collections.abc import Iterator, Mapping

import pytest

from tests.support.askers import Asker, list_pending
from tests.support.kernel import Kernel, shared
from tests.support.wire import BROADCAST, DECIDE, EMIT, KILL, LOGS, SEND, SHUTDOWN, STOP, STORE, THINK

IMAGE = base64.b64encode(b"\x89PNG").decode()
RULES = {"calls": ["*"], "agents": ["*"], "send": ["*"], "state_write": ["*"], "models": ["*"]}
CALLED = {"id": "c1", "name": "look", "arguments": {"at": "what was called"}}
Lines = list[list[str]]


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared() as started:
        yield started


@pytest.fixture(scope="module")
def asker(kernel: Kernel) -> Asker:
    kernel.spawn("target")
    return Asker(kernel, "asker", RULES)


def ask(asker: Asker, op: int, fields: Mapping[str, object]) -> tuple[Lines, Lines]:
    """The lines that a person sees, and what a remembered answer covers."""
    with asker.begin(op, fields):
        [pending] = list_pending(asker.kernel)
        with asker.kernel.connect() as wire:
            wire.call(DECIDE, {"id": pending["id"], "allow": False})
    return pending["lines"], pending["covers"]


@pytest.mark.parametrize(
    ("op", "fields", "lines"),
    [
        (BROADCAST, {"message": {"run": "rm"}}, [["BROADCAST"], ["message = ", '{"run": "rm"}']]),
        (
            EMIT,
            {"event_type": "custom.x", "data": ["\x1b", "\u202e"]},
            [
                ["EMIT"],
                ["event_type = ", '"custom.x"'],
                ["data = ", '["\\u001b", "\\u202e"]'],
            ],
        ),
        (STORE, {"key": "k", "value": "v"}, [["STORE ", "k"], ["value = ", '"v"']]),
        (STOP, {"names": ["target"]}, [["STOP agent ", "target"], ["names = ", '["target"]']]),
        (SHUTDOWN, {}, [["SHUTDOWN"]]),
    ],
    ids=["BROADCAST", "EMIT", "STORE", "STOP", "SHUTDOWN"],
)
def test_the_objects_and_all_given_fields_are_shown(
    asker: Asker, op: int, fields: Mapping[str, object], lines: Lines
) -> None:
    assert ask(asker, op, fields)[0] == lines


@pytest.mark.parametrize("op", [KILL, LOGS], ids=["KILL", "LOGS"])
def test_the_agent_is_named(asker: Asker, op: int) -> None:
    lines, covers = ask(asker, op, {"name": "target"})

    assert [lines[0][1], covers[0][1]] == ["target", "agent target"]
    assert covers[0][0].endswith(", whatever else it says: ")


def test_what_a_remembered_answer_leaves_open_is_said(asker: Asker) -> None:
    assert ask(asker, SEND, {"to_name": "target", "message": 1})[1] == [["SEND, whatever is sent: ", "agent target"]]
    assert ask(asker, STORE, {"key": "k", "value": 1})[1] == [["STORE, whatever the value: ", "k"]]


def test_of_a_question_all_that_goes_to_the_model_is_shown(asker: Asker) -> None:
    lines, _ = ask(
        asker,
        THINK,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "data": IMAGE, "mime_type": "image/png"}]},
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "what it said"},
            ],
            "tools": [{"name": "look", "description": "a description", "parameters": {"title": "a parameter"}}],
            "response_schema": {"title": "a schema"},
            "stop": ["a stop"],
        },
    )

    quoted = "\n".join(line[1] for line in lines if len(line) > 1)
    for text in ("image/png, 4 bytes, sha256", "what was called", "what it said", "a description", "a parameter"):
        assert text in quoted
    assert {"response_schema = ", "stop = "} <= {line[0] for line in lines}
