"""GET_CONTENTS: an agent's last questions to the model and their answers, for the operator."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from attrs import frozen

from agentos_sdk.codec import Rule, Text
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Usage

from .audit import Number
from .request import Request

Page: TypeAlias = Annotated[int, Rule(lambda limit: 1 <= limit <= 1000, "a whole number from 1 to 1000")]


@frozen(kw_only=True)
class CalledTool:
    """A tool call requested by the model; long texts in ``arguments`` are cut."""

    name: str
    arguments: Mapping[str, Any]


@frozen(kw_only=True)
class KeptMessage:
    """One turn of a conversation; ``images`` is their number."""

    role: Literal["user", "assistant", "tool"]
    text: Text
    images: int = 0
    tool_calls: Sequence[CalledTool] = ()


@frozen(kw_only=True)
class KeptQuestion:
    """A question to the model and its answer, with secrets redacted and long texts cut.

    ``at`` is when it was asked, seconds since the epoch. ``digest`` is the one in the audit log's entry of the call.
    ``left_out`` is the number of older messages that were not kept. ``outcome`` is ``ok`` or an error code.
    ``queued_ms`` and ``latency_ms`` are as in the reply of THINK. ``first_token_ms`` is the time until the first piece
    of the answer arrived, ``None`` if none did. ``cost`` is in the currency of ``[llm.prices]``, ``None`` without a
    price. ``answered_by`` is the model that the provider names.
    """

    id: int
    at: float
    agent_id: int
    name: str
    model: str
    digest: str
    system: Text | None
    messages: Sequence[KeptMessage]
    left_out: int
    tools: Sequence[str]
    answer: Text
    tool_calls: Sequence[CalledTool]
    answered_by: str | None
    finish_reason: str | None
    outcome: str
    error: Text | None
    usage: Usage
    cost: float | None
    attempts: int
    queued_ms: float
    first_token_ms: float | None
    latency_ms: float


@frozen(kw_only=True)
class Contents:
    """Questions by ``id``, the oldest first. ``more``: there are others in the direction of reading."""

    success: bool = True
    questions: Sequence[KeptQuestion]
    count: int
    more: bool


@frozen(kw_only=True)
class GetContents(Request[Contents]):
    """Get the newest ``limit`` questions of an agent, or of all; with ``since_id`` the first ones after that one.

    Only the operator may. A reply has at least one question and otherwise at most 256 KiB of them: while ``more`` is
    true, ask again.
    """

    op = Op.GET_CONTENTS
    reply = Contents
    name: str | None = None
    agent_id: Number | None = None
    since_id: Number | None = None
    limit: Page = 50
