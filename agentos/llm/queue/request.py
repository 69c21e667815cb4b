"""One request to the model, from its arrival to its end: a value whose state only this file changes.

    asked ──▶ queued ──▶ admitted ──▶ sent ──▶ streaming
                 ▲         │    ▲       │          │
                 │         ▼    └───────┴──────────┘  the attempt ends
                 └────── deferred
    asked, queued, admitted, deferred ──▶ settled (answered, or refused) or withdrawn (its caller has left)

A queued request waits for a slot at the provider of its model. An admitted one has the slot. It reserves budget, and is
sent in an *attempt*, after which it is admitted again, so that what it used is settled before the slot is left.
A deferred one holds neither a slot nor a reservation: it waits until a retry is due or budget is returned, then it is
queued again and pays for its slot like any other. The caller's task waits through all of these states; the line only
hands out slots. So a caller that leaves withdraws its request by unwinding, in whatever state it is.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum

import trio
from attrs import Factory, define, field
from msgspec import Struct

from agentos.llm.providers.provider import Answer, Delta, Question, estimate_input_tokens
from agentos.llm.settings import QueuePath
from agentos_sdk.errors import BadRequest, CallError
from agentos_sdk.values import Fallback, LLMClass, Usage

from .attempt import Attempt
from .claims import RequestSize, measure_request
from .classes import charge_factor, find_class
from .fair_queue import weighted_cost
from .fair_tree import Ticket

FAILED_TOKENS_PER_SECOND = 50.0  # charged for the time of a failed attempt: it kept the provider from other requests
MAX_PARTS = 2000  # of a request: the vendor's SDK takes half a millisecond for each
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")  # it becomes a part of a URL


class State(Enum):
    ASKED = "asked"
    QUEUED = "queued"
    ADMITTED = "admitted"
    SENT = "sent"
    STREAMING = "streaming"
    DEFERRED = "deferred"
    SETTLED = "settled"
    WITHDRAWN = "withdrawn"


ENDED = frozenset({State.SETTLED, State.WITHDRAWN})
WITH_SLOT = frozenset({State.ADMITTED, State.SENT, State.STREAMING})
NEXT: Mapping[State, frozenset[State]] = {
    State.ASKED: ENDED | {State.QUEUED},
    State.QUEUED: ENDED | {State.ADMITTED},
    State.ADMITTED: ENDED | {State.SENT, State.DEFERRED},
    State.SENT: frozenset({State.STREAMING, State.ADMITTED}),
    State.STREAMING: frozenset({State.ADMITTED}),
    State.DEFERRED: ENDED | {State.QUEUED, State.DEFERRED},
    State.SETTLED: frozenset(),
    State.WITHDRAWN: frozenset(),
}


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
class Request:
    """``question`` is what was asked; ``outgoing`` the same for ``model`` and with the limit of the next attempt.

    ``deadline`` is the call's. ``retry_deadline`` is the end of the time in which retries after HTTP 429 are allowed,
    ``expires`` that of all attempts together. All times are on Trio's clock. ``on_text`` is called with each piece of
    text as it arrives. If it is ``None``, no part of an answer that breaks off was delivered, so the request can be
    sent again. ``candidates`` are the models that it may still be sent to, ``passed`` those that it wasn't sent to or
    that didn't answer it, with the reasons; ``alias`` is the name that it asks for, if that is one.
    """

    question: Question
    queue_path: QueuePath
    on_text: Callable[[str], None] | None = None
    class_: LLMClass = field(default=Factory(lambda self: find_class(self.queue_path), takes_self=True))
    # The outermost account below that of the kernel. Its descendants are limited together: they may act together.
    account: str = field(init=False, default=Factory(lambda self: self.queue_path[:2][-1].name, takes_self=True))
    on_usage: Callable[["Request"], None] = lambda request: None  # called as the answer arrives
    state: State = State.ASKED
    at: float = field(factory=time.time)  # seconds since the epoch
    arrived_at: float = field(factory=trio.current_time)
    deadline: float = field(factory=trio.current_effective_deadline)
    input: int = 0  # tokens, estimated
    size: RequestSize = RequestSize(0, 0)
    model: str = field(init=False, default=Factory(lambda self: self.question.model, takes_self=True))
    outgoing: Question = field(init=False, default=Factory(lambda self: self.question, takes_self=True))

    alias: str | None = None
    candidates: list[str] = field(factory=list)
    passed: dict[str, str] = field(factory=dict)
    unavailable: CallError | None = None  # the error of the first model that was unavailable
    fallback_after: float | None = None  # seconds that it waits for its model; None: it can be sent to no other

    ticket: "Ticket[Request] | None" = None  # its entry in the fair queue, which is charged after it was admitted
    room: "Ticket[Request] | None" = None  # the entry with which `tpm` or `rpm` kept room for it; see `RateLimit`
    admitted: trio.Event = field(factory=trio.Event)  # set when it has a slot, or is refused one
    refusal: CallError | None = None
    provider: str = ""  # at which it has a slot
    slot_since: float | None = None  # when it got its last slot
    _served: float = 0.0  # seconds that it held slots that it has left

    retry_deadline: float = math.inf
    expires: float = math.inf
    attempt: Attempt = field(factory=Attempt)  # the last one; before the first one an empty one
    attempts: int = 0
    failures: int = 0  # of these attempts, not counting HTTP 429
    failed_seconds: float = 0.0  # seconds that the last attempt took, if it failed
    is_counted: bool = False  # as a call, in budgets and in `AgentUsage`
    bound: str | None = None  # for the audit log: tokens claimed and charged, if they differ
    total_usage: Usage = Usage()  # of all attempts that have ended

    result: ThinkResult | None = None
    outcome: str = "ok"  # or the code of the error
    error: str | None = None

    def measure(self) -> None:
        """Measure the question; takes some milliseconds for texts of several MiB."""
        self.input, self.size = estimate_input_tokens(self.question), measure_request(self.question)

    def enter(self, state: State) -> None:
        """Change the state; raises ``ValueError`` if :data:`NEXT` doesn't allow it."""
        if state not in NEXT[self.state]:
            raise ValueError(f"a request that is {self.state.value} can't be {state.value}")
        if self.has_slot and state not in WITH_SLOT:
            self._served = self.served_seconds
        self.state = state

    def queue(self, ticket: "Ticket[Request]") -> None:
        """It waits in the fair queue."""
        self.enter(State.QUEUED)
        self.ticket, self.admitted = ticket, trio.Event()

    def admit(self, provider: str) -> None:
        """It gets a slot at a provider."""
        self.enter(State.ADMITTED)
        self.provider, self.slot_since = provider, trio.current_time()
        self.admitted.set()

    def refuse(self, error: CallError) -> None:
        """It waits no longer: no model is left that it can wait for."""
        self.refusal = error
        self.admitted.set()

    @contextmanager
    def attempt_to_send(self) -> Iterator[Attempt]:
        """An attempt: the block sends the request and ends the attempt, or fails."""
        self.enter(State.SENT)
        self.failed_seconds, began = 0.0, trio.current_time()
        self.attempts += 1
        self.attempt = attempt = Attempt(self.input, self.size, self.outgoing.max_tokens)
        try:
            yield attempt
        except BaseException as error:
            self.failed_seconds = trio.current_time() - began
            attempt.fail(error)
            raise
        finally:
            self.enter(State.ADMITTED)
            self.total_usage += attempt.usage
            self.bound = attempt.bound or self.bound

    def receive(self, attempt: Attempt, delta: Delta) -> None:
        """A piece of the answer has arrived."""
        if self.state is State.SENT:
            self.enter(State.STREAMING)
        attempt.receive(delta)
        self.on_usage(self)
        if delta.text and self.on_text is not None:
            self.on_text(delta.text)

    def end(self, error: BaseException | None) -> None:
        """Settle or withdraw it. Keeps the code and text of an error, not the error, which leads back to the question.

        A cancelled one is a timeout if its deadline has passed. Breaks reference cycles: a request may have 16 MiB, too
        much to leave to the collector.
        """
        if isinstance(error, CallError):
            self.outcome, self.error = error.code, str(error)
        elif isinstance(error, trio.Cancelled):
            self.outcome = "timeout" if trio.current_time() >= self.deadline else "cancelled"
        elif error is not None:
            self.outcome = "internal"
        self.enter(State.WITHDRAWN if isinstance(error, trio.Cancelled) else State.SETTLED)
        self.ticket = self.room = self.unavailable = self.refusal = None

    @property
    def has_slot(self) -> bool:
        """Whether it has a slot at its provider."""
        return self.state in WITH_SLOT

    @property
    def served_seconds(self) -> float:
        """Seconds that it has held slots."""
        since = self.slot_since
        return self._served + (trio.current_time() - since if self.has_slot and since is not None else 0.0)

    @property
    def partly_delivered(self) -> bool:
        """Whether part of the answer has been delivered, so that the request can't be sent again."""
        return self.on_text is not None and self.attempt.characters > 0

    def change_model(self, model: str, fallback_after: float | None) -> None:
        """Send it to another model from now on; retries are counted anew."""
        self.model, self.fallback_after = model, fallback_after
        self.failures, self.retry_deadline, self.failed_seconds = 0, math.inf, 0.0

    @property
    def cost(self) -> float:
        """What the fair queue charges when it is admitted: its input."""
        return weighted_cost(self.input) * charge_factor(self.queue_path, self.class_)

    @property
    def attempt_cost(self) -> float:
        """What the fair queue charges for an attempt, so that an agent with only failing requests doesn't come first.

        It is what the attempt has used, at least the input, or the time it held the provider without an answer.
        """
        used = self.attempt.usage
        failed = weighted_cost(0, self.failed_seconds * FAILED_TOKENS_PER_SECOND)
        tokens = max(weighted_cost(max(used.input, self.input), used.generated), failed)
        return tokens * charge_factor(self.queue_path, self.class_)


def validate_question(question: Question) -> None:
    """Refuse a request that no provider could answer. Without a provider the model's name is empty."""
    if (question.model and not MODEL_NAME.fullmatch(question.model)) or ".." in question.model:
        raise BadRequest(f"model: expected a name of letters, digits and . _ - : / @ +, got {question.model[:80]!r}")
    if len(question.messages) > MAX_PARTS or question.parts > MAX_PARTS:  # the first alone is counted already
        raise BadRequest(f"messages: expected at most {MAX_PARTS} messages, blocks, images, tools and calls in all")
