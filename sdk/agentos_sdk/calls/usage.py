"""USAGE: what agents have used by day, and the reset of a budget."""

from collections.abc import Sequence
from typing import Annotated

from agentos_sdk.encoding.codec import Rule
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .inspect import Budget
from .request import Request, SuccessfulReply

MAX_TIME = 253_402_300_799.0  # seconds since the epoch: the end of the year 9999
SINCE_RULE = Rule(lambda since: 0 <= since <= MAX_TIME, "seconds since the epoch, before the year 10000")


@record
class DayUsage:
    """What one agent has used on one day of UTC, such as ``2026-11-22``.

    Of the ``tokens``, vendors have read ``cache_read`` from their prompt caches and written ``cache_creation`` to them.
    ``cost`` is ``None`` if the model of any call has no price. ``model`` is ``None`` unless asked for by model.
    ``cpu_seconds`` and ``peak_memory_bytes``, the largest of a life, are ``None`` if nothing has counted them.

    Of the last hour also the ``questions`` that have ended, and how many of these had no answer (``failed``) or were
    sent more than once (``retried``).
    """

    name: str
    day: str
    tokens: int
    calls: int
    cost: float | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    cache_read: int = 0
    cache_creation: int = 0
    model: str | None = None
    questions: int | None = None
    failed: int | None = None
    retried: int | None = None


@record
class UsageReply(SuccessfulReply):
    """By day and name, the oldest day first. ``currency`` is that of each ``cost``, such as ``USD``.

    ``budgets``: with ``hour``, those of agents that haven't ended for good.
    """

    usage: Sequence[DayUsage]
    currency: str | None = None
    budgets: Sequence[Budget] = ()


@record
class Usage(Request[UsageReply]):
    """What agents have used by day: one, or all without ``name``.

    ``since`` is seconds since the epoch: that day and later ones; without it the last seven days. ``reset``, for the
    operator only: set the used part of the budgets of ``name`` to 0 in their present windows. ``by_model``: a row for
    each model, of what it was used. ``total``: a row for all days together, the largest cost first. ``hour``: of the
    last hour, by model, in place of days.
    """

    op = Op.USAGE
    name: str | None = None
    since: Annotated[float, SINCE_RULE] | None = None
    reset: bool = False
    by_model: bool = False
    hour: bool = False
    total: bool = False
