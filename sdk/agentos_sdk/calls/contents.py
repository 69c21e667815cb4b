"""GET_CONTENTS: an agent's last questions to the model and their answers, for the operator."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from attrs import frozen

from agentos_sdk.codec import Rule
from agentos_sdk.opcodes import Op
from agentos_sdk.values import KeptQuestion

from .audit import Number
from .request import Request

Page: TypeAlias = Annotated[int, Rule(lambda limit: 1 <= limit <= 1000, "a whole number from 1 to 1000")]


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
