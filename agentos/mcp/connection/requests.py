"""What an MCP server asks for while it works on a call: the model's answer, or a person's.

Both are done for the caller of that call: a question to the model is its THINK, judged, charged and recorded as such; a
question to a person is an approval that waits in its name.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import trio
from attrs import define, field
from msgspec import Struct

from agentos.access.think_request import ThinkRequest, build_question
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question, Right
from agentos.llm.line import Line
from agentos.llm.queue.request import ThinkResult
from agentos.permissions.approvals.text import describe_message
from agentos.threads import run_in_thread
from agentos_sdk.calls import think
from agentos_sdk.encoding import codec
from agentos_sdk.errors import ApprovalRefused, ApprovalRequired, BadRequest, PermissionDenied, Unavailable
from agentos_sdk.opcodes import Op


class Sampled(Struct, frozen=True):
    """The model's answer, and why it ended: ``length`` or another reason."""

    text: str
    model: str
    finish_reason: str


@define(eq=False)
class Requests:
    """Answers the requests of one instance of a server."""

    server: str
    line: Line
    sampling: bool
    _asking: trio.Lock = field(factory=trio.Lock)  # a person, one question at a time
    _open: list[tuple[Call, str]] = field(factory=list)  # calls that the server works on, and their tools

    @contextmanager
    def during(self, call: Call, tool: str) -> Iterator[None]:
        """While the server works on this call it may ask."""
        self._open.append((call, tool))
        try:
            yield
        finally:
            self._open.remove((call, tool))

    async def sample(self, given: Mapping[str, Any]) -> Sampled:
        """Ask the model, with the fields of a THINK. Raises ``CallError``."""
        if not self.sampling:
            raise PermissionDenied(f"it may not ask the model: sampling is false in [mcp.servers.{self.server}]")
        caller, _ = self._find_caller()
        try:
            asked = codec.decode(think.Think, given)
        except codec.Invalid as error:
            raise BadRequest(str(error)) from None
        request = ThinkRequest(build_question(asked, self.line.model))
        thought = await caller.table.perform(Op.THINK, Call(caller, False), request)
        assert isinstance(thought, ThinkResult), "THINK's reply before it is encoded"
        return Sampled(thought.answer.text, thought.model, thought.answer.finish_reason)

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Ask a person, who can say yes or no; returns the filled form, None for no.

        Raises ``Unavailable`` for a form with other questions, and ``ApprovalRequired`` without an answer.
        """
        filled = fill_form(schema)
        caller, tool = self._find_caller()
        if caller.approvals is None:
            raise Unavailable("no person can be asked here")
        name = f"{self.server}.{tool}"
        question = await run_in_thread(build_elicitation, name, message, filled)
        try:
            async with self._asking:
                if caller.approvals.take(caller, question) is None:
                    await caller.approvals.wait(caller, question)
                    if caller.approvals.take(caller, question) is None:
                        raise ApprovalRequired(f"{name}: no person has answered")
        except ApprovalRefused:
            return None
        return filled

    def _find_caller(self) -> tuple[Caller, str]:
        """The caller that the server works for, and the tool; ``Unavailable`` if it can't be told."""
        callers = {call.caller.id: (call.caller, tool) for call, tool in self._open}
        if not callers:
            raise Unavailable("no call is open that this could be asked for")
        if len(callers) > 1:
            raise Unavailable(
                'calls of several agents are open: with share = "all" it can\'t be told for which call this is'
            )
        return next(iter(callers.values()))


def fill_form(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The form that yes means: each question for yes or no is answered with yes, what has a default with that."""
    properties = schema.get("properties")
    filled: dict[str, Any] = {}
    for name, one in properties.items() if isinstance(properties, dict) else ():
        kind = one.get("type") if isinstance(one, dict) else None
        if kind == "boolean":
            filled[name] = True
        elif isinstance(one, dict) and is_answer(default := one.get("default")):
            filled[name] = default
        elif name in (schema.get("required") or ()):
            raise Unavailable("a person can only say yes or no here: ask for booleans, or give each field a default")
    return filled


def is_answer(value: object) -> bool:
    """Whether MCP allows this value in a filled form."""
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    )


def build_elicitation(tool: str, message: str, filled: Mapping[str, Any]) -> Question:
    """What a person is asked. Blocks."""
    form = "\n".join(f"{name} = {codec.encode(value).decode()}" for name, value in filled.items())
    texts = [("", message), *([("yes fills in", form)] if form else [])]
    shown = describe_message("a question of the MCP tool", tool, texts)
    text = f"{message}\0{form}"
    digest = sha256(b"elicit\0" + tool.encode() + b"\0" + text.encode(errors="surrogatepass")).hexdigest()
    right = Right("elicit", f"{tool} (sha256 {digest})")
    rule = f"an elicitation of the MCP server {tool.partition('.')[0]}"
    decision = Decision("ask", rule, f"{tool} asks a person")
    return Question("ELICIT", tool, ((right, decision),), digest, shown)
