"""Approval of a call in the MCP client's own window: an elicitation, where the operator has let its answer decide.

The SDK runs the functions here, its resolvers, before the tool. In the protocol of 2026-07-28 a question ends the
request, and the client sends the request again with the answer: resolvers and tool run anew. So all that must happen
once is kept by the kernel: :func:`file` makes the call itself, which queues it as an approval and doesn't wait. The
question names that approval by its number and digest, so that an answer to another one doesn't count. The approval is
decided once, and then the same call may be made once.
"""

from typing import Any

from attrs import frozen
from mcp.server.mcpserver import AcceptedElicitation, CancelledElicitation, Context, Elicit, ElicitationResult
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from agentos_sdk.errors import ApprovalRequired

from .performing import Progress, perform
from .tools import Call
from .transports.session import Session

QUOTED = "\u2039{}\u203a"  # the kernel escapes these quotation marks in what is quoted


class Answer(BaseModel):
    """What the person answers."""

    allow: bool = Field(title="Allow", description="Allow this call, once")


@frozen
class Filed:
    """A call that waits for a person: its approval's ``number``, ``digest``, and ``question`` for the person."""

    number: int
    digest: str
    question: str


@frozen
class Made:
    """A call that needed no answer after all, with its ``reply``: a person has allowed it already."""

    reply: object


async def file(session: Session, context: Context[Any, Any], call: Call, progress: Progress) -> Filed | Made | None:
    """Queue a call that a rule asks about, if the client's answer decides; None: the tool just makes the call.

    Raises as :func:`~agentos.userland.mcp.performing.perform` does.
    """
    if not session.decides or not can_ask(context):
        return None
    guest = (await session.guest()).agent_id
    explained = await (await session.operator()).explain(guest, call.request.op.name, call.fields)
    if explained.decision != "ask" or explained.digest is None:
        return None
    try:
        return Made(await perform(session, call, progress))
    except ApprovalRequired as error:
        number = error.details.get("approval_id")
        if not isinstance(number, int):  # there is no room for it
            raise
    lines = "\n".join(words + "".join(map(QUOTED.format, quoted)) for words, *quoted in explained.lines)
    question = (
        f"{session.entry.guest} wants to make the call {call.request.op.name}, and the rule "
        f"`{explained.rule}` asks a person. "
        f"What stands in {QUOTED.format(' ')} was chosen by the client, its model or a file.\n\n"
        f"{lines}\n\nApproval {number}, sha256 {explained.digest}"
    )
    return Filed(number, explained.digest, question)


def ask(filed: Filed | Made | None) -> Elicit[Answer] | None:
    """The question about a call that was queued."""
    return Elicit(filed.question, Answer) if isinstance(filed, Filed) else None


async def decide(session: Session, filed: Filed, answer: ElicitationResult[Answer]) -> None:
    """Decide the approval as the person has answered. Raises ``ToolError`` unless it is allowed now."""
    if isinstance(answer, CancelledElicitation):
        raise ToolError(
            f"approval_required: the question was closed without an answer; approval {filed.number} still waits for a "
            f"person: `agentos approve {filed.number}` or `agentos deny {filed.number}`"
        )
    allow = isinstance(answer, AcceptedElicitation) and answer.data.allow
    operator, via = await session.operator(), f"{session.entry.guest} (elicitation)"
    await operator.decide(filed.number, allow, digest=filed.digest, via=via)
    if not allow:
        raise ToolError(f"approval_refused: a person has refused approval {filed.number}")


def can_ask(context: Context[Any, Any]) -> bool:
    """Whether the client has said that it can put questions to a person, in a form."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)
