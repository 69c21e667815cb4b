"""``agentos fork REC@N --only``: asks one recorded question anew, and shows the answers side by side."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.common import Failed, kernel, parse_number, print_json, print_table, printable
from agentos.userland.recordings.questions import CantAsk, build_question
from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op

from .recordings import open_recording, readable

HEADER = ["MODEL", "IN", "OUT", "COST", "SECONDS", "ANSWER"]

Json = dict[str, Any]


def ask_again(moment: str, models: Sequence[str], times: int, socket_path: str | None, as_json: bool) -> None:
    """Ask the question ``REC@N`` of each model so many times; without models of that which was asked then."""
    name, _, number = moment.rpartition("@")
    if not name or not number.isdecimal():
        raise click.BadParameter(f"expected REC@N, with --only, got {moment!r}", param_hint="MOMENT")
    recorded = find_question(name, parse_number(number))
    try:
        question, left_out = build_question(recorded.request)
    except CantAsk as error:
        raise Failed(f"{moment}: {error}") from None
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
