"""METRICS_SYSTEM: metrics of the whole kernel."""

from collections.abc import Sequence

from attrs import frozen

from agentos_sdk.opcodes import Op

from .inspect import Budget, ModelState
from .request import Request


@frozen(kw_only=True)
class LineMetrics:
    """The queue for the model: questions waiting and in flight at the provider, and the budgets shared by all.

    ``fairness`` is Jain's index over what the callers that waited throughout the last minute or two got, relative to
    their weights: 1 is entirely fair. ``providers`` are the kernel's own model, and those that can't be called now.
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
    """Get the metrics of the whole kernel; for the operator only."""

    op = Op.METRICS_SYSTEM
    reply = MetricsReply
