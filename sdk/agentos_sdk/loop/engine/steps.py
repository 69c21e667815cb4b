"""Makes the tool calls of one answer, each between two records, and none twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agentos_sdk.loop.tools.call_tools import DONE, DONE_PARAMETERS
from agentos_sdk.loop.tools.file_tools import apply_plan, digest, read_whole
from agentos_sdk.loop.tools.schema import mistakes
from agentos_sdk.loop.tools.tools import Context, Plan, Tool, ToolError, encodable, shorten

from .effects import Run, Together, Work
from .records import Records, call_digest

IN_DOUBT = (
    "The kernel or the agent stopped while this ran: it may have had all, some or none of its effects. It was not "
    "repeated. Find out what it has done before you go on."
)
MAX_CALLS = 100  # of one answer
MAX_TOGETHER = 8  # calls at the same time: each takes a connection, of which an agent has a limited number


class Outcome(NamedTuple):
    """A tool's result, for the model; ``ok`` is false where it failed."""

    text: str
    ok: bool = True


class Steps:
    """Makes tool calls and keeps their records."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        context: Context,
        records: Records,
        report: Callable[[dict[str, Any]], Work[None]],
        confirm: Callable[[str], bool] | None = None,
    ) -> None:
        self._tools, self._context, self._records, self._report = tools, context, records, report
        self._confirm = confirm

    def make(self, step: str, calls: Sequence[Mapping[str, Any]]) -> Work[dict[str, Outcome]]:
        """The outcomes of calls by their ids. Neighbours that may be made at the same time are."""
        outcomes: dict[str, Outcome] = {}
        group: list[tuple[int, Mapping[str, Any]]] = []
        for number, call in enumerate(calls[:MAX_CALLS]):
            tool = self._tools.get(call["name"])
            if tool is None or not tool.together:
                yield from self._make_group(step, group, outcomes)
                group = [(number, call)]
                yield from self._make_group(step, group, outcomes)
                group = []
            else:
                group.append((number, call))
                if len(group) == MAX_TOGETHER:
                    yield from self._make_group(step, group, outcomes)
                    group = []
        yield from self._make_group(step, group, outcomes)
        for call in calls[MAX_CALLS:]:
            outcomes[call["id"]] = Outcome(f"not made: an answer may have {MAX_CALLS} calls", ok=False)
        return outcomes

    def _make_group(
        self, step: str, group: Sequence[tuple[int, Mapping[str, Any]]], outcomes: dict[str, Outcome]
    ) -> Work[None]:
        names = [call["name"] for _, call in group]
        works = [self._make_one(f"{step}/{number:02}", call, names.count(call["name"])) for number, call in group]
        found = [(yield from works[0])] if len(works) == 1 else (yield Together(works)) if works else []
        for (_, call), outcome in zip(group, found, strict=True):
            outcomes[call["id"]] = outcome

    def _make_one(self, place: str, call: Mapping[str, Any], shares: int) -> Work[Outcome]:
        name, arguments = call["name"], call["arguments"]
        record = {"call": name, "arguments": arguments, "digest": call_digest(name, arguments)}
        if (done := (yield from self._records.get(f"{place}/finished"))) is not None:
            if (spent := (yield from self._records.get(f"{place}/spent"))) is not None:
                self._context.spent.add(spent)
            return Outcome(done["result"], done["ok"])
        started = yield from self._records.get(f"{place}/started")
        number = int(place.partition("/")[0])
        yield from self._report({"step": number, "kind": "call", "call": name, "arguments": cut(arguments)})
        try:
            if started is None:
                text = yield from self._do(self._check(name, arguments), arguments, place, record, shares)
            else:
                text = yield from self._resolve_doubt(self._tools.get(name), arguments, place, started)
            outcome = Outcome(shorten(encodable(text)))
        except ToolError as error:
            outcome = Outcome(shorten(encodable(str(error))), ok=False)
        finished = {**record, "result": outcome.text, "ok": outcome.ok}
        yield from self._records.create(f"{place}/finished", finished)
        note = {"step": number, "kind": "result", "call": name, "ok": outcome.ok, "result": cut(outcome.text)}
        yield from self._report(note)
        return outcome

    def _check(self, name: str, arguments: Any) -> Tool:
        """The tool; a wrong call is a :class:`ToolError` that says what to fix."""
        if (tool := self._tools.get(name)) is None:
            raise ToolError(f"there is no tool {name!r}; the tools are {', '.join([*self._tools, DONE])}")
        is_checked = tool.is_checked or not isinstance(arguments, dict)
        if is_checked and (wrong := list(mistakes(arguments, tool.parameters))):
            raise ToolError(f"{name} was not called: " + "; ".join(wrong))
        return tool

    def _do(self, tool: Tool, arguments: dict[str, Any], place: str, record: dict[str, Any], shares: int) -> Work[str]:
        if self._confirm is not None and tool.after_crash != "again":
            text = f"{tool.name} {json.dumps(arguments, ensure_ascii=False)}"
            if not (yield Run(self._confirm, {"text": text})):
                raise ToolError("the user refused this call")
        plan = None
        if tool.plan is not None:
            plan = yield from tool.plan(arguments)
            record = {**record, "path": plan.path, "before": plan.before, "after": plan.after}
        yield from self._records.create(f"{place}/started", record)
        if plan is not None:
            return (yield from apply_plan(plan))
        return (yield from tool.act(self._context._replace(shares=shares), arguments, place))

    def _resolve_doubt(
        self, tool: Tool | None, arguments: dict[str, Any], place: str, started: Mapping[str, Any]
    ) -> Work[str]:
        """What became of a call that was begun in an earlier life of the agent and isn't finished.

        There may be no such tool any more, such as one of an MCP server that doesn't start: the call was made anyway.
        """
        if tool is not None and tool.after_crash == "again":
            return (yield from tool.act(self._context, arguments, place))
        if tool is not None and tool.plan is not None:
            return (yield from self._compare(tool, arguments, started))
        kept = yield from self._records.get(f"{place}/output")
        raise ToolError(f"{IN_DOUBT}\nIts output so far:\n{kept['text']}" if kept is not None else IN_DOUBT)

    def _compare(self, tool: Tool, arguments: dict[str, Any], started: Mapping[str, Any]) -> Work[str]:
        """Finish a change of a file by the digests of its content."""
        assert tool.plan is not None
        data = yield from read_whole(started["path"])
        present = None if data is None else digest(data)
        if present == started["after"]:
            return f"changed {started['path']}"
        if present != started["before"]:
            raise ToolError(
                f"the agent stopped while this ran, and {started['path']} has been changed by something else since: "
                "it was left as it is. Read it before you go on."
            )
        plan: Plan = yield from tool.plan(arguments)
        return (yield from apply_plan(plan))

    def refuse_done(self, call: Mapping[str, Any], others: Mapping[str, Outcome]) -> Outcome | None:
        """Why ``done`` isn't accepted, if it isn't."""
        if wrong := list(mistakes(call["arguments"], DONE_PARAMETERS)):
            return Outcome("done was not accepted: " + "; ".join(wrong), ok=False)
        if call["arguments"].get("success", True) and not all(outcome.ok for outcome in others.values()):
            return Outcome("done was not accepted: another call of the same answer failed", ok=False)
        return None


def cut(value: Any) -> Any:
    """A value for an event: at most about 1 KiB."""
    if isinstance(value, dict):
        return {str(key)[:100]: cut(each) for key, each in list(value.items())[:10]}
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= 500 and not isinstance(value, list) else f"{text[:500]}…" if len(text) > 500 else text
