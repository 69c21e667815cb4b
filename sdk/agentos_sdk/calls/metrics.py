"""METRICS_SYSTEM: how the kernel as a whole is doing."""

from collections.abc import Sequence

from attrs import frozen

from agentos_sdk.opcodes import Op

from .inspect import Budget, ModelState
from .request import Request


@frozen(kw_only=True)
class LineMetrics:
    """The line to the model: how many questions wait and are with the provider, and the budgets of all together.

    ``fairness`` is Jain's index over what those got who have been waiting all through the last minute or two, relative
    to their weights: 1 is entirely fair. ``providers`` are the kernel's own model, and those that can't be asked.
    """

    waiting: int
    in_flight: int
    fairness: float
    budgets: Sequence[Budget]
    providers: Sequence[ModelState] = ()


@frozen(kw_only=True)
class SystemMetrics:
    llm: LineMetrics


@frozen(kw_only=True)
class MetricsReply:
    success: bool = True
    metrics: SystemMetrics


@frozen(kw_only=True)
class MetricsSystem(Request[MetricsReply]):
    """Takes nothing."""

    op = Op.METRICS_SYSTEM
    reply = MetricsReply
