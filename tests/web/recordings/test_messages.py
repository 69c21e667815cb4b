"""What the server tells pages about recordings: by the role of their link, and bounded."""

from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.format import Life
from agentos.userland.web.links import Role
from tests.recordings.written import line, write_recording
from tests.support.kernel import Kernel
from tests.web.conftest import browser_of


def asked(kernel: Kernel, role: Role, **args: object) -> Any:
    with browser_of(kernel, role).open_page() as tab:
        return tab.ask({"type": "recordings", "id": 1, **args})


def place(kernel: Kernel, name: str) -> Path:
    return Path(kernel.state_dir) / "recordings" / f"{name}.recording"


def test_the_operator_gets_the_list_a_life_and_the_contents_of_a_call(kernel: Kernel) -> None:
    listed = asked(kernel, "operator")["lives"]
    one = next(each for each in listed if each["recording"] == "coder-1")
    assert (one["life"], one["agent"], one["replayable"], one["failed"]) == ("coder/1", "coder", True, False)
    assert one["size"] > 0

    life = asked(kernel, "operator", name="coder-1")
    thinks = [entry for entry in life["entries"] if entry["call"] == "THINK"]
    assert len(thinks) == 3
    assert life["count"] == len(life["entries"])

    found = asked(kernel, "operator", name="coder-1", call=thinks[-1]["id"])["contents"]
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert found["answer"] == "said 2"


@pytest.mark.parametrize(
    ("role", "lists", "opens"),
    [("viewer", True, False), ("viewer-with-contents", True, True), ("approver", False, False)],
)
def test_a_link_shows_recordings_as_its_role_allows(kernel: Kernel, role: Role, lists: bool, opens: bool) -> None:
    number = asked(kernel, "operator", name="coder-1")["entries"][0]["id"]
    questions: list[dict[str, Any]] = [{}, {"name": "coder-1"}, {"name": "coder-1", "call": number}]
    answers = [asked(kernel, role, **each) for each in questions]

    codes = [answer.get("code", "ok") for answer in answers]
    assert codes == ["ok" if allowed else "permission_denied" for allowed in (lists, opens, opens)]


@pytest.mark.parametrize("name", ["missing", "../coder-1", "coder-1.recording/..", "/etc", ".", ""])
def test_a_name_that_is_none_finds_no_recording(kernel: Kernel, name: str) -> None:
    answer = asked(kernel, "operator", name=name)

    assert answer["code"] == "not_found"
    assert answer["error"].startswith("name: there is no recording")


DEEP = (
    b'{"n":[1,2],"life":"coder/1","call":"THINK","at":1,"ms":1,"request":' + b'{"a":' * 200 + b"1" + b"}" * 201 + b"\n"
)


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("deep", [DEEP], "nested deeper than 100 levels"),
        ("text", [b"no json\n"], "no JSON"),
        ("messages", [line(1, request={"messages": 3})], "request.messages: expected a list"),
        ("order", [{**line(1), "n": [3, 1]}], "n: expected the numbers"),
    ],
)
def test_a_recording_that_cant_be_read_is_an_error_that_names_the_line(
    kernel: Kernel, name: str, lines: list[Any], expected: str
) -> None:
    write_recording(place(kernel, name), lines, name=name)

    answer = asked(kernel, "operator", name=name)

    assert answer["code"] == "bad_request"
    assert "line 1" in answer["error"]
    assert expected in answer["error"]


def test_a_page_gets_the_beginnings_of_long_texts_and_the_last_messages(kernel: Kernel) -> None:
    messages = [{"role": "user" * 99, "text": "x" * 100_000} for _ in range(100)]
    odd: list[Any] = [3, None, {"text": {"a": [1]}, "images": 7}]
    write_recording(
        place(kernel, "long"),
        [line(1, request={"messages": messages + odd}, reply={"usage": 3, "model": ["m"], "queued_ms": "?"})]
        + [line(number, "X" * 5000, request={"path": "y" * 5000}) for number in range(2, 402)],
        name="long",
        lives=[Life("coder/1", "z" * 5000, 1000.0, exit="w" * 5000)],
    )

    life = asked(kernel, "operator", name="long")
    assert (life["count"], len(life["entries"])) == (401, 200)
    assert max(len(str(value)) for entry in life["entries"] for value in entry.values()) <= 200
    assert len(life["agent"]) == len(life["end"]) == 200

    found = asked(kernel, "operator", name="long", call=1)["contents"]
    assert (len(found["messages"]), found["left_out"]) == (30, 71)
    assert max(len(message["text"]) for message in found["messages"][:-1]) < 9000


def test_a_recording_beyond_what_a_page_reads_is_left_to_the_command_line(kernel: Kernel) -> None:
    found = write_recording(place(kernel, "huge"), [], name="huge")
    with (found / "calls.jsonl").open("wb") as file:
        file.truncate((64 << 20) + 1)

    answer = asked(kernel, "operator", name="huge")

    assert answer["code"] == "too_large"
    assert "agentos recordings show huge" in answer["error"]
