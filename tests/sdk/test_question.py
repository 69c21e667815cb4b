"""THINK's request as the kernel reads it, and as Python's values become one."""

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.calls.think import DECODED_CHARS as SIZE
from agentos_sdk.calls.think import Image, Message, Part, Think, Thought
from agentos_sdk.clients.question import encode_image, question
from agentos_sdk.encoding.codec import Invalid, Text, decode, encode, parse
from agentos_sdk.opcodes import Op
from agentos_sdk.values import ToolCall, Usage
from tests.support.runs.rows import each_row

USER = {"role": "user", "content": "hello"}
PNG = b"\x89PNG\r\n\x1a\n rest"


def read(**fields: Any) -> Think:
    return decode(Think, fields)


@each_row(
    ("fields", "mistake"),
    [
        ({}, "prompt: expected one, or messages that aren't all the system's"),
        ({"prompt": " \n"}, "prompt: expected some text, got none"),
        ({"prompt": 5}, "prompt: expected a string, got 5"),
        ({"promt": "x", "messages": [USER]}, "promt: unknown field, did you mean prompt?"),
        ({"prompt": "x", "thinking_level": "deep"}, "thinking_level: expected low, medium or high, got 'deep'"),
        ({"prompt": "x", "temperature": 2.1}, "temperature: expected a number from 0 to 2, got 2.1"),
        ({"prompt": "x", "temperature": -1}, "temperature: expected a number from 0 to 2, got -1"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens: expected a whole number from 1 up, got 0"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens: expected a whole number, got 1.5"),
        ({"prompt": "x", "model": ""}, "model: expected a name, got ''"),
        ({"prompt": "x", "timeout": "soon"}, "timeout: expected a duration such as 5s, got 'soon'"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop[1]: expected some text, got ''"),
        ({"prompt": "x", "stop": list("abcde")}, "stop: expected at most 4 texts, got an array"),
        ({"prompt": "x", "response_schema": True}, "response_schema: expected keys and values, got true"),
        ({"prompt": "x", "tool_choice": "any"}, "tool_choice: expected auto, none or required, got 'any'"),
        ({"prompt": "x", "tool_choice": "required"}, "tool_choice: expected tools to choose from"),
        ({"prompt": "x", "tools": [{}]}, "tools[0].name: required field missing"),
        (
            {"prompt": "x", "tools": [{"name": "read file"}]},
            "tools[0].name: expected 1 to 64 letters, digits, _ and -, got 'read file'",
        ),
        (
            {"prompt": "x", "tools": [{"name": "f"}, {"name": "f"}]},
            "tools: expected names that differ, got 'f' twice",
        ),
    ],
)
def test_a_mistake_names_its_field(fields: dict[str, Any], mistake: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(**fields)

    assert str(caught.value) == mistake


@each_row(
    ("image", "mistake"),
    [
        ({}, "data: required field missing"),
        ({"data": ""}, "data: expected base64, with padding and without line breaks, got ''"),
        ({"data": "AAA"}, "data: expected base64, with padding and without line breaks, got 'AAA'"),
        ({"data": "A=AA"}, "data: expected base64, with padding and without line breaks, got 'A=AA'"),
        ({"data": "A==="}, "data: expected base64, with padding and without line breaks, got 'A==='"),
        ({"data": "AA-_"}, "data: expected base64, with padding and without line breaks, got 'AA-_'"),
        ({"data": "AAAA\nAAA"}, r"data: expected base64, with padding and without line breaks, got 'AAAA\nAAA'"),
        ({"data": "ÄÄÄÄ"}, "data: expected base64, with padding and without line breaks, got 'ÄÄÄÄ'"),
        (
            {"data": "AAAA", "mime_type": "text/html"},
            "mime_type: expected the type of an image such as image/png, got 'text/html'",
        ),
        ({"data": "AAAA", "url": "http://x"}, "url: unknown field"),
    ],
)
def test_a_mistake_in_an_image_names_the_image(image: dict[str, str], mistake: str) -> None:
    with pytest.raises(Invalid) as one:
        read(prompt="x", image=image)
    with pytest.raises(Invalid) as second:
        read(prompt="x", images=[{"data": "AAAA"}, image])

    assert str(one.value) == f"image.{mistake}"
    assert str(second.value) == f"images[1].{mistake}"


@each_row(
    ("message", "mistake"),
    [
        ({"role": "bot", "content": "x"}, ".role: expected system, user, assistant or tool, got 'bot'"),
        ({"role": "user", "content": 5}, ".content: expected a string or an array, got 5"),
        ({"role": "user"}, ": content: required field missing"),
        ({"role": "tool", "content": "x"}, ": tool_call_id: expected in a tool's messages, and in no others"),
        (
            {"role": "user", "content": "x", "tool_call_id": "1"},
            ": tool_call_id: expected in a tool's messages, and in no others",
        ),
        (
            {"role": "user", "tool_calls": [{"id": "1", "name": "f", "arguments": {}}]},
            ": tool_calls: expected in the assistant's messages only, not in the user's",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": ["a"]}]},
            ".tool_calls[0].arguments: expected keys and values or a string, got an array",
        ),
        (
            {"role": "system", "content": [{"type": "image", "data": "AAAA"}]},
            ": content: expected images in the user's messages only, not in the system's",
        ),
        ({"role": "user", "content": [{"type": "video"}]}, ".content[0].type: expected text or image, got 'video'"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0]: a part of type text needs text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "data": "AAAA"}]},
            ".content[0]: a part of type text has no data and no mime_type",
        ),
        (
            {"role": "user", "content": [{"type": "image", "data": "nonsense!"}]},
            ".content[0].data: expected base64, with padding and without line breaks, got 'nonsense!'",
        ),
    ],
)
def test_a_mistake_in_a_message_names_the_message(message: dict[str, Any], mistake: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(messages=[USER, message])

    assert str(caught.value) == f"messages[1]{mistake}"


def test_images_belong_to_a_prompt() -> None:
    with pytest.raises(Invalid, match=r"^prompt: expected one with image and images"):
        read(messages=[USER], images=[{"data": "AAAA"}])


def test_the_prompt_is_the_last_turn_with_all_its_images() -> None:
    asked = read(
        messages=[USER, {"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "Hi."}],
        prompt="What is this?",
        image={"data": "AAAA"},
        images=[{"data": "AAAB", "mime_type": "image/png"}],
    )

    *before, last = asked.turns

    assert [(turn.role, turn.text) for turn in before] == [("user", "hello"), ("assistant", "Hi.")]
    assert (last.role, last.text) == ("user", "What is this?")
    assert [(image.decoded, image.mime_type) for image in last.images] == [
        (b"\0\0\0", "image/jpeg"),
        (b"\0\0\1", "image/png"),
    ]


def test_messages_need_no_prompt() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image", "data": "AAAA"}, {"type": "text", "text": "b"}]

    (turn,) = read(messages=[{"role": "user", "content": parts}]).turns

    assert (turn.text, len(turn.images)) == ("ab", 1)


def test_what_the_system_says_is_gathered_in_order() -> None:
    says = [{"role": "system", "content": text} for text in ("First.", "Second.")]

    assert read(messages=[says[0], USER, says[1]], system_instruction="Above all.").system == (
        "Above all.\n\nFirst.\n\nSecond."
    )
    assert read(prompt="x").system is None


def test_an_answer_is_a_turn_of_the_next_question() -> None:
    call = ToolCall(id="1", name="look", arguments={"at": [1, {"b": None}]}, signature="c2ln")
    thought = Thought(
        content=Text(""),
        tokens=3,
        model="m",
        usage=Usage(input=1, output=1, thinking=1),
        finish_reason="tool_calls",
        tool_calls=[call],
        queued_ms=0.0,
        latency_ms=1.0,
    )
    result = {"role": "tool", "content": "a wall", "tool_call_id": "1"}

    again = decode(Think, parse(encode(question({"messages": [USER, thought.message, result]}))))

    assert [turn.role for turn in again.turns] == ["user", "assistant", "tool"]
    assert list(again.turns[1].tool_calls) == [call]


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip).map(Text)


@given(
    st.builds(
        Think,
        prompt=TEXTS,
        messages=st.lists(st.builds(Message, role=st.sampled_from(["system", "user"]), content=TEXTS)).map(tuple),
        temperature=st.none() | st.floats(0, 2),
        max_tokens=st.none() | st.integers(1, 1 << 40),
        response_schema=st.none() | st.dictionaries(st.text("abc"), st.booleans() | TEXTS),
    )
)
def test_a_request_survives_the_wire(asked: Think) -> None:
    assert decode(Think, parse(encode(asked))) == asked


@each_row("size", [1, 2, 3, SIZE - 1, SIZE, SIZE * 3 // 4, SIZE * 2 + 1])
def test_an_image_of_any_size_comes_out_as_it_went_in(size: int) -> None:
    file = bytes(number % 251 for number in range(size))

    image = decode(Image, encode_image(file))

    assert image.decoded == file


@each_row(
    ("start", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "image/jpeg"),
        (b"?", "image/jpeg"),
    ],
)
def test_an_images_first_bytes_tell_what_it_is(start: bytes, kind: str) -> None:
    assert encode_image(start)["mime_type"] == kind
    assert encode_image(start, "image/avif")["mime_type"] == "image/avif"


def test_images_are_bytes_or_files(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    as_sent = {"data": base64.b64encode(PNG).decode(), "mime_type": "image/png"}

    assert question({"prompt": "x", "image": file, "images": [str(file), PNG]}) == {
        "prompt": "x",
        "image": as_sent,
        "images": [as_sent, as_sent],
    }
    part = {"type": "image", **encode_image(file)}
    (turn,) = read(messages=[{"role": "user", "content": [part]}]).turns
    assert [image.decoded for image in turn.images] == [PNG]
    with pytest.raises(FileNotFoundError):
        question({"prompt": "x", "image": tmp_path / "none"})


def test_no_image_stands_in_what_is_printed_of_a_request() -> None:
    secret = base64.b64encode(b"a picture of somebody").decode()
    message = Message(role="user", content=[Part(type="image", data=Text(secret))])

    assert secret not in repr(Think(image=Image(data=Text(secret)), prompt=Text("x"), messages=[message]))


def test_the_request_and_its_reply_are_those_of_think() -> None:
    assert (Think.op, Think.reply) == (Op.THINK, Thought)
