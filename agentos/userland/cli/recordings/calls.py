"""The calls of a recording as those of `agentos trace`. No I/O."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from agentos.recordings.format import Life
from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.top.trace_lives import Think, Trace, TracedCall
from agentos.userland.recordings.calls import describe_call, describe_contents


def trace_calls(life: Life, calls: Iterable[RecordedCall], most: int) -> Trace:
    """The last calls of a life, from those of all lives: its questions have the numbers that they have among all."""
    found, asked = Trace(life.began, most), list[int]()
    for call in calls:
        if call.call == "THINK":
            asked.append(call.begin)
        if call.life != life.life:
            continue
        entry = describe_call(call)
        found.seen_until = max(found.seen_until, entry["at"])
        think = _describe_think(call) if call.call == "THINK" else None
        kept = describe_contents(call) if think is not None else None
        start = max(0.0, call.at - life.began)
        found.calls[call.begin] = TracedCall(entry, start, entry["duration"], think, kept)
        if len(found.calls) > most:
            del found.calls[next(iter(found.calls))]
            found.left_out += 1
    asked.sort()
    for begin, traced in found.calls.items():
        if traced.think is not None:
            traced.think = evolve(traced.think, number=bisect_right(asked, begin))
    return found


def _describe_think(call: RecordedCall) -> Think:
    reply = call.reply or {}
    usage: Mapping[str, Any] = reply.get("usage") or {}
    queued = reply.get("queued_ms")
    return Think(
        str(reply.get("model") or call.request.get("model", "")),
        "",
        usage.get("input"),
        usage.get("output", 0) + usage.get("thinking", 0) if usage else None,
        reply.get("cost"),
        None if queued is None else queued / 1000,
    )
