"""What an MCP server asks a person: to which question an answer belongs."""

import itertools
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from agentos.kernel.call import Call
from agentos.mcp.connection.requests import Requests, build_elicitation
from agentos_sdk.errors import ApprovalRequired, PermissionDenied, Unavailable
from tests.permissions.approvals.approval_desk import caller, opened

ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("notes.drop", "Are you sure?", {"sure": True}),
    ("notes.drop", "Are you sure?", {"sure": True, "all": True}),
    ("notes.drop", "Are you sure?", {"sure": "yes"}),
    ("notes.drop", "Are you sure?", {}),
    ("notes.drop", "Sure?", {"sure": True}),
    ("notes.add", "Are you sure?", {"sure": True}),
]


def test_an_answer_belongs_to_one_tool_message_and_form() -> None:
    for one, other in itertools.product(ASKED, ASKED):
        asked, again = build_elicitation(*one), build_elicitation(*other)
        [(right, _)], [(same, _)] = asked.asked, again.asked

        assert (asked.digest == again.digest) == (right == same) == (one == other), (one, other)


async def test_without_an_open_call_no_person_is_asked_and_no_model() -> None:
    requests = Requests("notes", cast(Any, None), sampling=True)

    with pytest.raises(Unavailable, match="no call is open"):
        await requests.elicit("Sure?", {})
    with pytest.raises(Unavailable, match="no call is open"):
        await requests.sample({})


async def test_a_server_without_sampling_asks_no_model() -> None:
    requests = Requests("notes", cast(Any, None), sampling=False)

    with requests.during(Call(caller(2, "ann"), False), "drop"), pytest.raises(PermissionDenied, match="sampling"):
        await requests.sample({"prompt": "hello"})


async def test_one_yes_answers_one_of_two_equal_questions(tmp_path: Path) -> None:
    answers = list[object]()

    async def ask(own: Call) -> None:
        requests = Requests("notes", cast(Any, None), sampling=False)
        with requests.during(own, "drop"):
            try:
                answers.append(await requests.elicit("Sure?", {"properties": {"sure": {"type": "boolean"}}}))
            except ApprovalRequired as error:
                answers.append(str(error))

    async with opened(tmp_path) as desk:
        agent = caller(2, "ann")
        agent.approvals = desk.queue
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask, Call(agent, False))
            [entry] = await desk.listed()
            await desk.wait_until_asked_by(2, entry.id)
            await desk.decide(entry.id)

    assert answers == [{"sure": True}, "notes.drop: no person has answered"]
