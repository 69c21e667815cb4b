"""GET_CONTENTS: an agent's last questions to the model and their answers, for the operator."""

from collections.abc import Sequence

from agentos_sdk.calls.request import Number, Page, Request, SuccessfulReply
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import KeptQuestion


@record
class Contents(SuccessfulReply):
    """Questions by ``id``, the oldest first. ``more``: there are others in the direction of reading."""

    questions: Sequence[KeptQuestion]
    count: int
    more: bool


@record
class GetContents(Request[Contents]):
    """Get the newest ``limit`` questions of an agent, or of all; with ``since_id`` the first ones after that one.

    Only the operator may. A reply has at least one question and otherwise at most 256 KiB of them: while ``more`` is
    true, ask again.
    """

    op = Op.GET_CONTENTS
    name: str | None = None
    agent_id: Number | None = None
    since_id: Number | None = None
    limit: Page = 50
