"""``agentos fork REC@N --only``: asks one recorded question anew, and shows the answers side by side."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.common import Failed, kernel, print_json, print_table, printable
from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op

from .recordings import open_recording, readable

HEADER = ["MODEL", "IN", "OUT", "COST", "SECONDS", "ANSWER"]
SAME = ("temperature", "max_tokens", "thinking_level", "tools", "tool_choice", "stop", "response_schema")
KNOWN = frozenset({*SAME, "model", "system", "messages", "stream", "timeout", "class", "async"})

Json = dict[str, Any]


def ask_again(moment: str, models: Sequence[str], times: int, socket_path: str | None, as_json: bool) -> None:
    """Ask the question ``REC@N`` of each model so many times; without models of that which was asked then."""
    name, _, number = moment.rpartition("@")
    if not name or not number.isdecimal():
        raise click.BadParameter(f"expected REC@N, with --only, got {moment!r}", param_hint="MOMENT")
    recorded = find_question(name, int(number))
    try:
        question, left_out = build_question(recorded.request)
    except (AttributeError, KeyError, TypeError):
        raise Failed(f"{moment}: the recorded question was malformed, and refused") from None
    rows = [describe(str(recorded.request.get("model", "")) + " (recorded)", recorded.reply or {})]
    asked = [model for model in models or [question["model"]] for _ in range(times)]
    with kernel(socket_path) as client:
        replies = [ask(client, {**question, "model": model}) for model in asked]
    if as_json:
        print_json({"recorded": recorded.reply, "answers": replies, "left_out": left_out})
        return
    rows += [describe(reply["asked"], reply) for reply in replies]
    print_table(rows, HEADER, ("MODEL", "ANSWER"))
    if left_out:
        click.echo(printable(f"left out, as THINK doesn't have it: {', '.join(left_out)}"))


def find_question(name: str, number: int) -> RecordedCall:
    """The question with this number, from 1, in the order in which they were asked; of all lives of a recording."""
    found = open_recording(name, None)
    with readable():
        questions = sorted((call for call in found.calls() if call.call == "THINK"), key=lambda call: call.begin)
    if not 1 <= number <= len(questions):
        raise Failed(f"{found.manifest.name} has {len(questions)} questions, and no {number}")
    return questions[number - 1]


def build_question(recorded: Mapping[str, Any]) -> tuple[Json, Sequence[str]]:
    """The request of THINK that asks a recorded question, and what THINK can't ask. Raises :class:`Failed`."""
    messages = recorded.get("messages", ())
    if recorded.get("embed") or any(message.get("images") for message in messages):
        raise Failed(
            "it can't be asked anew: "
            + ("it asks for vectors" if recorded.get("embed") else "the recording has no images")
        )
    question: Json = {key: recorded[key] for key in SAME if recorded.get(key) is not None}
    if recorded.get("system") is not None:
        question["system_instruction"] = recorded["system"]
    question |= {"model": recorded.get("model", ""), "messages": [_build_message(message) for message in messages]}
    return question, sorted(recorded.keys() - KNOWN)


def _build_message(message: Mapping[str, Any]) -> Json:
    made: Json = {"role": message["role"], "content": message.get("text", "")}
    if message.get("calls"):
        made["tool_calls"] = message["calls"]
    if message.get("answers") is not None:
        made["tool_call_id"] = message["answers"]
    return made


def ask(client: AgentOSClient, question: Json) -> Json:
    """The reply, or the refusal; ``asked`` is the model."""
    reply: Json = client.request(Op.THINK, question)
    return {**reply, "asked": question["model"]}


def describe(model: str, reply: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    if not reply.get("success"):
        return [model, "-", "-", "-", "-", str(reply.get("error") or "no answer")]
    used, cost = reply.get("usage", {}), reply.get("cost")
    calls = [f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in reply["tool_calls"]]
    said = " ".join([reply.get("content", ""), *calls]).split()
    return [
        model,
        str(used.get("input", 0)),
        str(used.get("output", 0) + used.get("thinking", 0)),
        "-" if cost is None else f"{cost:.4g}",
        f"{(reply['latency_ms'] - reply['queued_ms']) / 1000:.1f}",
        " ".join(said),
    ]
