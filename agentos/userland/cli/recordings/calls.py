"""The calls of a recording as those of `agentos trace`. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from agentos.recordings.format import Life
from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.audit.table import Entry
from agentos.userland.cli.top.trace_lives import Think, Trace, TracedCall

OBJECTS = ("command", "path", "url", "key", "to_name", "name", "tool", "event_type")  # of requests, for people


def trace_calls(life: Life, calls: Iterable[RecordedCall], most: int) -> Trace:
    """The last calls of a life."""
    found = Trace(life.began, most)
    for call in calls:
        entry = _describe(call)
        found.seen_until = max(found.seen_until, entry["at"])
        think = _describe_think(call) if call.call == "THINK" else None
        kept = _describe_contents(call) if think is not None else None
        start = max(0.0, call.at - life.began)
        found.calls[call.begin] = TracedCall(entry, start, entry["duration"], think, kept)
        if len(found.calls) > most:
            del found.calls[next(iter(found.calls))]
            found.left_out += 1
    return found


def describe_object(call: RecordedCall) -> str:
    """What a call is about; empty if its request doesn't say that in one field."""
    return next((str(call.request[key]) for key in OBJECTS if call.request.get(key)), "")


def _describe(call: RecordedCall) -> Entry:
    reply, seconds = call.reply or {}, call.milliseconds / 1000
    code = "ok" if reply.get("success", True) is not False else str(reply.get("code", "failed"))
    return {
        "id": call.begin,
        "at": call.at + seconds,
        "call": call.call,
        "about": describe_object(call) or str(reply.get("error") or ""),
        "decision": "deny" if code == "permission_denied" else "allow",
        "rule": str(reply.get("rule", "")),
        "phase": "outcome",
        "outcome": call.outcome or code,
        "repeated": 1,
        "duration": seconds,
    }


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


def _describe_contents(call: RecordedCall) -> dict[str, Any]:
    reply, request = call.reply or {}, call.request
    return {
        "system": request.get("system"),
        "messages": [
            {"role": one.get("role", ""), "text": one.get("text", ""), "images": len(one.get("images", ()))}
            for one in request.get("messages", ())
        ],
        "left_out": 0,
        "answer": reply.get("content", ""),
        "tool_calls": reply.get("tool_calls") or [],
        "error": reply.get("error"),
    }
