"""Recorded calls and recordings as they are shown. No I/O."""

from typing import Any

from agentos.recordings.format import Manifest
from agentos.recordings.reader import RecordedCall

OBJECTS = ("command", "path", "url", "key", "to_name", "name", "tool", "event_type")  # of requests, for people

Json = dict[str, Any]


def describe_object(call: RecordedCall) -> str:
    """What a call is about; empty if its request doesn't say that in one field."""
    return next((str(call.request[key]) for key in OBJECTS if call.request.get(key)), "")


def describe_call(call: RecordedCall) -> Json:
    """In the form of an entry of the audit log; ``id`` is the number of its begin."""
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


def describe_contents(call: RecordedCall) -> Json:
    """The question and its answer."""
    reply, request = call.reply or {}, call.request
    return {
        "system": request.get("system"),
        "messages": [
            {"role": one.get("role", ""), "text": one.get("text", ""), "images": _count(one.get("images"))}
            for one in request.get("messages", ())
            if isinstance(one, dict)
        ],
        "left_out": 0,
        "answer": reply.get("content", ""),
        "tool_calls": reply.get("tool_calls") or [],
        "error": reply.get("error"),
    }


def _count(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def describe_end(manifest: Manifest) -> str:
    """How its last life ended, or it itself before that."""
    if manifest.lives and manifest.lives[-1].exit:
        return str(manifest.lives[-1].exit)
    if manifest.ended is None:
        return "goes on, or ended with the kernel"
    return manifest.reason or "stopped by the operator"
