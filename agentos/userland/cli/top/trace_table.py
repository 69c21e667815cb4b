"""A life of an agent as a waterfall of calls: one line each, with a bar where the time went. No I/O."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from attrs import frozen

from agentos.userland.cli.audit.table import format_duration, truncate
from agentos.userland.cli.common import plural, printable

from .trace_lives import Think, TracedCall

WAITING, WORKING, EVENT = "░", "█", "·"
OFFSET_WIDTH, TOOK_WIDTH, CALL_WIDTH, BAR_WIDTH = 8, 7, 10, 18  # columns
MAX_TEXT_LINES = 12  # of one text of a question or an answer
SHOWN_WAIT = 0.01  # seconds from which the wait for the model is mentioned


@frozen
class Scale:
    """The time span of a whole bar, in seconds since the life began."""

    first: float
    last: float

    def column(self, at: float) -> float:
        return (at - self.first) / max(self.last - self.first, 0.001) * BAR_WIDTH

    def __str__(self) -> str:
        first = format_offset(self.first) if self.first else "0"
        return first + format_offset(self.last).rjust(BAR_WIDTH - len(first))


def waterfall(calls: Sequence[TracedCall], scale: Scale, width: int, contents: bool) -> Iterator[str]:
    """The lines of the calls."""
    yield click.style(
        f"{'START':>{OFFSET_WIDTH}}  {'TOOK':>{TOOK_WIDTH}}  {'CALL':<{CALL_WIDTH}}  {scale}  WHAT", bold=True
    )
    for call in calls:
        name = truncate(
            printable(call.call.removeprefix("AGENT_").lower() if is_event(call) else call.call), CALL_WIDTH
        )
        took = "" if call.duration is None else format_duration(call.duration)
        head = f"{format_offset(call.start):>{OFFSET_WIDTH}}  {took:>{TOOK_WIDTH}}  {name:<{CALL_WIDTH}}"
        head = f"{head}  {draw_bar(call, scale)}  "
        what, room = printable(describe(call)), width - len(head)
        for part in textwrap.wrap(what, room) if call.think is not None else [truncate(what, room)]:
            yield click.style(f"{head}{part}".rstrip(), fg=colour(call))
            head = " " * len(head)
        if contents and call.think is not None:
            yield from content_lines(call, width)


def is_event(call: TracedCall) -> bool:
    return call.call.startswith("AGENT_")


def colour(call: TracedCall) -> str | None:
    if call.is_refused:
        return "red"
    return "yellow" if call.is_unfinished or call.entry["outcome"] not in ("ok", "") else None


def draw_bar(call: TracedCall, scale: Scale) -> str:
    """The call's bar: waiting in the queue for the model, then working."""
    first = max(0, min(BAR_WIDTH - 1, int(scale.column(call.start))))
    if call.duration is None:
        return f"{' ' * first}{EVENT}".ljust(BAR_WIDTH)
    cells = max(1, min(BAR_WIDTH, round(scale.column(call.start + call.duration))) - first)
    queued = call.think.queued if call.think is not None else None
    share = queued / call.duration if queued is not None and call.duration > 0 else 0.0
    waiting = min(cells, round(cells * share))
    return f"{' ' * first}{WAITING * waiting}{WORKING * (cells - waiting)}".ljust(BAR_WIDTH)


def describe(call: TracedCall) -> str:
    """The call's object, preceded by its error."""
    entry, think = call.entry, call.think
    about = str(entry["about"]) if think is None else describe_think(call)
    if call.is_refused:
        return f"{'denied' if entry['decision'] == 'deny' else 'must ask'}: {about} [{entry['rule']}]"
    if call.is_unfinished:
        return f"no outcome: {about}"
    if entry["outcome"] not in ("ok", "") and not is_event(call):
        return f"{entry['outcome']}: {about}"
    times = f"{entry['repeated']} times: " if entry["repeated"] > 1 else ""
    return times + about


def describe_think(call: TracedCall) -> str:
    think = call.think
    assert think is not None, "it is a question"
    parts = [] if think.number is None else [f"question {think.number}"]
    if think.queued is not None and think.queued >= SHOWN_WAIT:
        parts.append(f"waited {format_duration(think.queued)}")
    if think.tokens_in is not None:
        parts.append(f"{think.tokens_in} tokens in, {think.tokens_out} out")
    parts += cost_texts([think])
    parts.append(think.model)
    if think.left_out is not None:
        parts.append(f"left out: {think.left_out}")
    return ", ".join(parts)


def cost_texts(thinks: Sequence[Think]) -> Sequence[str]:
    """What questions cost together: a text for each currency that their entries name."""
    costs: dict[str, float] = {}
    for think in thinks:
        if think.cost is not None:
            currency = f" {think.currency}" if think.currency else ""
            costs[currency] = costs.get(currency, 0.0) + think.cost
    return [f"cost {cost:.4g}{currency}" for currency, cost in costs.items()]


def format_offset(seconds: float) -> str:
    """``1.234s``, ``2m05.1s``, ``3h02m05s``."""
    if seconds < 60:
        return f"{seconds:.3f}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes:.0f}m{rest:04.1f}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:.0f}h{minutes:02.0f}m{rest:02.0f}s" if hours < 100 else f"{hours:.0f}h"


def total_lines(calls: Sequence[TracedCall], width: int, running: bool = False) -> Iterator[str]:
    """Totals of the shown calls; of a ``running`` life the log may not have the messages yet."""
    asked = [call.think for call in calls if call.think is not None]
    counted = [call for call in calls if not is_event(call)]
    refused, failed = (
        sum(call.is_refused for call in counted),
        sum(not call.is_refused and call.entry["outcome"] not in ("ok", "") for call in counted),
    )
    parts = [
        plural(sum(max(1, call.entry["repeated"]) for call in counted), "call"),
        f"{refused} refused" if refused else "",
        f"{failed} failed" if failed else "",
    ]
    told = any(call.call in ("SEND", "RECV") for call in calls)
    more = " (and messages: they are counted, and noted each full hour)" if running and not told else ""
    yield ", ".join(filter(None, parts)) + more
    if asked:
        queued = sum(think.queued or 0.0 for think in asked)
        whole = sum(call.duration or 0.0 for call in calls if call.think is not None)
        parts = [
            f"{plural(len(asked), 'question')}: {format_duration(queued)} in the queue",
            f"{format_duration(max(0.0, whole - queued))} at the model",
            f"{sum(think.tokens_in or 0 for think in asked)} tokens in",
            f"{sum(think.tokens_out or 0 for think in asked)} out",
            *cost_texts(asked),
        ]
        yield from textwrap.wrap(", ".join(filter(None, parts)), width)


# -- Questions and answers ---------------------------------------------------------------------------------------------


def content_lines(call: TracedCall, width: int) -> Iterator[str]:
    """The messages since the model's last answer, and the answer; long texts are cut."""
    kept = call.kept
    if kept is None:
        yield from text_lines(
            "", "(not kept: older than the last questions, or of an earlier run of the kernel)", width
        )
        return
    messages = kept["messages"]
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    new = messages[turns[-1] + 1 :] if turns else messages
    earlier = len(messages) - len(new) + kept["left_out"]
    if kept["system"] is not None and not turns:
        yield from text_lines("system", kept["system"], width)
    if earlier:
        yield from text_lines("", f"({plural(earlier, 'earlier turn')})", width)
    for message in new or messages[-1:]:
        images = f"({plural(message['images'], 'image')}) " if message["images"] else ""
        yield from text_lines(message["role"], images + message["text"], width)
    if kept["answer"]:
        yield from text_lines("answer", kept["answer"], width)
    for called in kept["tool_calls"]:
        yield from text_lines("calls", f"{called['name']} {describe_arguments(called['arguments'])}", width)
    if kept["error"] is not None:
        yield from text_lines("error", kept["error"], width)


def describe_arguments(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def text_lines(label: str, text: str, width: int) -> Iterator[str]:
    """A text of an agent or a model, wrapped, beside a label."""
    indent = " " * (OFFSET_WIDTH + TOOK_WIDTH + 4)
    room = width - len(indent) - 10
    lines = [part for line in text.splitlines() for part in textwrap.wrap(printable(line), room) or [""]]
    cut = len(lines) - MAX_TEXT_LINES
    if cut > 1:
        lines = [*lines[:MAX_TEXT_LINES], f"… ({cut} more lines; --json has all)"]
    for number, line in enumerate(lines or [""]):
        yield f"{indent}{label if not number else '':<8}| {line}".rstrip()


def describe_life(name: str, number: int, of: int, began: str, seconds: float | None, reason: str | None) -> str:
    """The first line: ``writer: life 2 of 3 in the log, from 2026-01-31 18:00:00, 41.2s: exited with status 1``."""
    lasted = "" if seconds is None else f", {format_offset(seconds)}"
    end = "no end is recorded" if reason is None else reason
    return printable(f"{name}: life {number} of {of} in the log, from {began}{lasted}: {end}")
