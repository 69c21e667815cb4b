"""Which answers decide about a call, and that none decides about two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.support.clients import mcp
from tests.userland.mcp.asking import answered, append, ask, asking
from tests.userland.mcp.serving import Cell, Person, error_of, value_of


@pytest.mark.parametrize("person", [Person("decline"), Person("accept", allow=False)], ids=["declined", "no"])
async def test_a_refusal_does_nothing(near: Cell, place: Path, person: Person) -> None:
    async with near.connect(asking(near), elicitation_callback=person) as client, near.operator() as operator:
        done = await client.call_tool("agentos_write", append(place))
        assert not await operator.approvals()

    assert "approval_refused: a person has refused approval " in error_of(done)
    assert not (place / "file").exists()


async def test_a_question_that_is_closed_decides_nothing(near: Cell, place: Path) -> None:
    person = Person("cancel")

    async with near.connect(asking(near), elicitation_callback=person) as client, near.operator() as operator:
        done = await client.call_tool("agentos_write", append(place))
        [pending] = await operator.approvals()
        await operator.decide(pending.id, allow=False)

    assert f"approval {pending.id} still waits for a person" in error_of(done)
    assert not (place / "file").exists()


@pytest.mark.parametrize("transport_of_entry", ["stdio", "http"])
async def test_no_answer_decides_unless_the_operator_has_let_it(
    near: Cell, place: Path, transport_of_entry: str
) -> None:
    """Nor over HTTP, whatever the entry says: its client may be a program without a person."""
    person = Person()
    elicitation = "off" if transport_of_entry == "stdio" else "decides"
    entry = evolve(asking(near, elicitation=elicitation), transport=transport_of_entry)

    async with near.connect(entry, elicitation_callback=person) as client, near.operator() as operator:
        waits = await client.call_tool("agentos_write", append(place))
        listed = value_of(await client.call_tool("agentos_approvals", {}))["approvals"]
        [pending] = await operator.approvals()
        assert not (place / "file").exists()
        await operator.decide(pending.id, allow=True)
        done = await client.call_tool("agentos_write", append(place))

    assert "approval_required: WRITE " in error_of(waits)
    assert f"A person decides it with `agentos approve {pending.id}` or `agentos deny {pending.id}`" in error_of(waits)
    assert [(one["id"], one["digest"]) for one in listed] == [(pending.id, pending.digest)]
    assert value_of(done) == {"bytes_written": 1}
    assert not person.questions


async def test_a_client_that_can_ask_no_person_leaves_it_to_the_operator(near: Cell, place: Path) -> None:
    async with near.connect(asking(near)) as client, near.operator() as operator:
        waits = await client.call_tool("agentos_write", append(place))
        [pending] = await operator.approvals()
        await operator.decide(pending.id, allow=False)

    assert f"`agentos approve {pending.id}`" in error_of(waits)


async def test_a_used_state_is_no_answer_to_the_next_call(modern: Cell, place: Path) -> None:
    async with modern.connect(asking(modern), elicitation_callback=Person()) as client:
        first = await ask(client, place)
        await client.call_tool("agentos_write", append(place), **answered(first))

        again = await ask(client, place, **answered(first))

    assert questions_of(again) != questions_of(first)
    assert (place / "file").read_text() == "x"


async def test_two_requests_with_the_same_answer_act_once(modern: Cell, place: Path) -> None:
    async with modern.connect(asking(modern), elicitation_callback=Person()) as client:
        first = await ask(client, place)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call_twice, client, append(place), answered(first))

    assert (place / "file").read_text() == "x"


async def call_twice(client: mcp.Client, arguments: dict[str, Any], answer: dict[str, Any]) -> None:
    """A call that may be asked about anew, or fail because another one was first."""
    await client.session.call_tool("agentos_write", arguments, **answer, allow_input_required=True)


async def test_a_state_of_another_client_or_call_is_refused(modern: Cell, place: Path) -> None:
    async with modern.connect(asking(modern), elicitation_callback=Person()) as client:
        first = await ask(client, place)
        with pytest.raises(mcp.MCPError, match="Invalid or expired requestState"):
            await client.call_tool("agentos_write", {**append(place), "content": "y"}, **answered(first))
    async with modern.connect(asking(modern, "other"), elicitation_callback=Person()) as client:
        with pytest.raises(mcp.MCPError, match="Invalid or expired requestState"):
            await client.call_tool("agentos_write", append(place), **answered(first))

    assert not (place / "file").exists()


def questions_of(result: mcp.types.InputRequiredResult) -> list[str]:
    return [request.params.message for request in (result.input_requests or {}).values()]  # type: ignore[union-attr]
