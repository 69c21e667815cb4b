"""One request to the model as the queue keeps it, from its arrival to its answer."""

import re
from collections.abc import Sequence

import trio
from attrs import define, field
from msgspec import Struct

from agentos.llm.models.routes import Candidates
from agentos.llm.providers.provider import Answer, Question
from agentos.llm.settings import QueuePath
from agentos_sdk.errors import BadRequest, CallError
from agentos_sdk.values import Fallback, LLMClass

from .active_request import ActiveRequest
from .classes import charge_factor
from .fair_queue import weighted_cost
from .fair_tree import Path, Ticket

FAILED_TOKENS_PER_SECOND = 50.0  # charged for the time of a failed attempt: it kept the provider from other requests
MAX_PARTS = 2000  # of a request: the vendor's SDK takes half a millisecond for each
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")  # it becomes a part of a URL


class ThinkResult(Struct, frozen=True):
    """An answer; seconds that the request waited, and that the provider worked on it.

    ``cost`` is that of the answer's usage, ``None`` if its model has no price.
    ``bound`` says, for the audit log, that the tokens charged are not those that the provider claims, and why.
    ``model`` is the one that was asked in the end; ``requested_model`` the alias that was asked for, if it was one.
    ``cached``: no model was asked, as an equal question was answered before. ``context`` is how many tokens fit into
    the model's context.
    """

    answer: Answer
    queued: float
    latency: float
    bound: str | None = None
    model: str = ""
    requested_model: str | None = None
    fallbacks: Sequence[Fallback] = ()
    cached: bool = False
    cost: float | None = None
    context: int | None = None


@define(eq=False)
class Job:
    """``candidates`` are the models that it may be sent to."""

    queue_path: QueuePath
    request: ActiveRequest
    candidates: Candidates
    arrived_at: float
    max_tokens: int | None  # tokens that it may generate, before limits by a budget
    class_: LLMClass
    is_counted: bool = False  # as a call, in budgets and in `AgentUsage`
    ticket: "Ticket[Job] | None" = None  # of its current turn
    kept: "Ticket[Job] | None" = None  # of the turn in which `tpm` or `rpm` kept room for it; see `RateLimit`
    outcome: ThinkResult | CallError | None = None
    holds_slot: bool = False  # a place at the provider
    slot_since: float = 0.0  # when it got the place
    pool: str = ""  # the provider at which it has that place
    earlier_seconds: float = 0.0  # seconds that it held a place in earlier turns
    next_turn: trio.Event | None = None  # set for its next turn, after it has been suspended
    refusal: CallError | None = None  # raised instead of that turn
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    done: trio.Event = field(factory=trio.Event)

    @property
    def model(self) -> str:
        """The model that it is sent to, or waits for."""
        return self.request.question.model

    def charge(self, tokens: float) -> float:
        """What the fair queue charges for so many weighted tokens."""
        return tokens * charge_factor(self.queue_path, self.class_)

    @property
    def served_seconds(self) -> float:
        """Seconds that it has held a place at the provider."""
        return self.earlier_seconds + (trio.current_time() - self.slot_since if self.holds_slot else 0.0)

    def release(self) -> None:
        """Break reference cycles: a request may have 16 MiB, too much to leave to the collector."""
        self.ticket = self.kept = self.request.on_usage = self.candidates.error = None


def validate_question(question: Question) -> None:
    """Refuse a request that no provider could answer. Without a provider the model's name is empty."""
    if (question.model and not MODEL_NAME.fullmatch(question.model)) or ".." in question.model:
        raise BadRequest(f"model: expected a name of letters, digits and . _ - : / @ +, got {question.model[:80]!r}")
    if len(question.messages) > MAX_PARTS or question.parts > MAX_PARTS:  # the first alone is counted already
        raise BadRequest(f"messages: expected at most {MAX_PARTS} messages, blocks, images, tools and calls in all")


def queue_names(queue_path: QueuePath) -> Path:
    return tuple(account.name for account in queue_path)


def outermost_account(queue_path: QueuePath) -> str:
    """The outermost account below the kernel's. Its descendants are limited together, because they may act together."""
    return queue_path[min(1, len(queue_path) - 1)].name


def charge_for(request: ActiveRequest) -> float:
    """What the fair queue charges for an attempt, so that an agent with only failing requests doesn't come first.

    It is what the attempt has used, at least the input, or the time it held the provider without an answer.
    """
    used = request.last_usage
    failed = weighted_cost(0, request.failed_seconds * FAILED_TOKENS_PER_SECOND)
    return max(weighted_cost(max(used.input, request.input), used.generated), failed)
