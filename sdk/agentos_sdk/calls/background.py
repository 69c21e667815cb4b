"""ASYNC_POLL: collects the replies of calls that a version 1 client made with ``"async": true``."""

from collections.abc import Sequence
from typing import Annotated, Literal

from agentos_sdk.encoding.codec import Rule, Text
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Request, SuccessfulReply


@record
class Accepted(SuccessfulReply):
    """The reply to a call with ``async``, before it has begun; its own reply comes by ASYNC_POLL."""

    async_: bool = True
    request_id: int | str
    status: Literal["accepted"] = "accepted"


@record
class AsyncResult:
    """The reply of one call: ``payload`` is its body, JSON as text."""

    request_id: int | str
    opcode: int
    opcode_name: str
    payload: Text


@record
class AsyncResults(SuccessfulReply):
    """The calls that were answered first."""

    results: Sequence[AsyncResult]
    count: int


@record
class AsyncPoll(Request[AsyncResults]):
    """Collect the replies of the caller's calls with ``async``, at most ``max``. Doesn't wait."""

    op = Op.ASYNC_POLL
    max: Annotated[int, Rule(lambda most: most >= 1, "a whole number from 1 up")] = 10
