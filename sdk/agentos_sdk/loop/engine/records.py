"""The records of a task in the agent's private state: what was begun and what was finished survives a crash.

Keys, in the scope ``agent``::

    task/ID                     what the task is, and when it began
    task/ID/0001/asked          the model was asked, and how often
    task/ID/0001/thought        its answer
    task/ID/0001/00/started     a tool call: tool, arguments, digest of both; of a file also its digests
    task/ID/0001/00/output      what a running command has written so far
    task/ID/0001/00/spent       tokens and cost of a subagent
    task/ID/0001/00/finished    its result
    task/ID/0002/summary        the model was asked for a summary, and how often
    task/ID/0002/trim           what of the conversation is left out or summarised from this question on
    task/ID/0003/told           what the operator said before this question
    task/ID/end                 how the task has ended

Each is stored with ``if_version``, so that two processes never work on one task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from agentos_sdk.opcodes import Op

from .effects import Call, Reply, Work
from .result import LoopError

MAX_RECORD = 900 << 10  # bytes: STORE takes 1 MiB
PAGE = 1000  # keys


class Records:
    """The records of one task; knows which there are, so that only those are fetched."""

    def __init__(self, task_id: str) -> None:
        self.prefix = f"task/{task_id}"
        self._known: set[str] = set()

    def open(self) -> Work[None]:
        """Find out which records there are."""
        after = ""
        while after is not None:
            page = yield from _checked(
                Call(Op.KEYS, {"prefix": self.prefix, "scope": "agent", "limit": PAGE, "after": after})
            )
            self._known |= set(page["keys"])
            after = page["next"]

    def has(self, name: str) -> bool:
        return self._key(name) in self._known

    def get(self, name: str) -> Work[Any]:
        """A record, None if there is none."""
        if not self.has(name):
            return None
        reply = yield from _checked(Call(Op.FETCH, {"key": self._key(name), "scope": "agent"}))
        return reply["value"]

    def create(self, name: str, value: Mapping[str, Any]) -> Work[None]:
        """Store a record that doesn't exist; raises :class:`LoopError` if another process has stored it meanwhile."""
        yield from self._store(name, value, if_version=0)

    def replace(self, name: str, value: Mapping[str, Any]) -> Work[None]:
        """Store a record that only this process changes."""
        yield from self._store(name, value, if_version=None)

    def remove(self, name: str) -> Work[None]:
        """Remove a record."""
        yield from _checked(Call(Op.DELETE, {"key": self._key(name), "scope": "agent"}))
        self._known.discard(self._key(name))

    def _store(self, name: str, value: Mapping[str, Any], if_version: int | None) -> Work[None]:
        fields: dict[str, Any] = {"key": self._key(name), "value": value, "scope": "agent"}
        if if_version is not None:
            fields["if_version"] = if_version
        if (size := len(json.dumps(value))) > MAX_RECORD:
            raise LoopError(f"the record {self._key(name)} would have {size} bytes, more than STORE takes")
        reply = yield Call(Op.STORE, fields)
        if reply.get("code") == "conflict":
            raise LoopError(f"{fields['key']} exists already: another process works on this task")
        if not reply["success"]:
            raise LoopError(f"the task's records can't be stored: {reply['code']}: {reply['error']}")
        self._known.add(fields["key"])

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if name else self.prefix


def step_name(number: int) -> str:
    return f"{number:04}"


def call_digest(tool: str, arguments: Any) -> str:
    return sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


def transcript(records: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a task's transcript, from its records by name, in order: a view, nothing else is stored.

    The first has ``task``, the last ``end``; the others ``step`` and what happened: ``thought``, or a ``call`` with its
    ``arguments`` and its ``result``, or with ``interrupted`` if it was begun and not finished.
    """
    yield {"task": records[""]["task"], "at": records[""]["at"]}
    for name in sorted(records, key=_order):
        step, _, rest = name.partition("/")
        record = records[name]
        if rest == "thought":
            yield {"step": int(step), "thought": record["content"], "tokens": record["tokens"], "cost": record["cost"]}
        elif rest == "told":
            yield {"step": int(step), "told": record["texts"]}
        elif rest == "trim":
            yield {"step": int(step), "summary": record["summary"]}
        elif rest.endswith("/finished"):
            yield {"step": int(step), **{key: record[key] for key in ("call", "arguments", "result", "ok")}}
        elif rest.endswith("/started") and name.removesuffix("started") + "finished" not in records:
            yield {"step": int(step), "call": record["call"], "arguments": record["arguments"], "interrupted": True}
    if "end" in records:
        yield {"end": records["end"]}


def _order(name: str) -> tuple[str, int, str]:
    """What was said and what was left out come before the answer, and that before its calls."""
    step, _, rest = name.partition("/")
    return step, {"told": 0, "trim": 1, "thought": 2}.get(rest, 3), rest


def _checked(call: Call) -> Work[Reply]:
    reply: Reply = yield call
    if not reply["success"]:
        raise LoopError(f"the task's records can't be read: {reply['code']}: {reply['error']}")
    return reply
