"""One request to a model, from its first attempt to its answer: what it has used, and how long it may go on."""

import math
from collections.abc import Callable

import trio
from attrs import Factory, define, evolve, field

from agentos.llm.providers.provider import (
    CHARACTERS_PER_TOKEN,
    Delta,
    Failing,
    ProviderError,
    Question,
    estimate_tokens,
)
from agentos_sdk.values import Usage

from .claims import Bound, RequestSize, limit_claim, measure_request, utf8_length

MAX_ANSWER = 16 << 20  # characters of one answer


class Stalled(Failing):
    """The provider accepted the request and then sent nothing for too long."""


@define(eq=False)
class ActiveRequest:
    """A request under way, and what it has used so far.

    ``deadline`` is the call's deadline. ``retry_deadline`` is the end of the time in which retries after HTTP 429 are
    allowed, ``expires`` that of all attempts together. They are on Trio's clock. ``fallback_after`` is how many seconds
    it waits for its model if it can be sent to another one; ``None``: it can't. ``on_text`` is called with each piece
    of text as it arrives. If ``on_text`` is ``None``, no part of an answer that breaks off was delivered, so the
    request can be sent again.
    """

    question: Question
    input: int  # tokens, estimated
    account: str  # the outermost account below that of all agents; see `jobs.outermost_account`
    sent: RequestSize = field(
        default=Factory(lambda self: measure_request(self.question), takes_self=True), kw_only=True
    )
    on_text: Callable[[str], None] | None = None
    on_usage: Callable[[], None] | None = None  # called when `last_usage` has grown
    deadline: float = math.inf
    retry_deadline: float = math.inf
    expires: float = math.inf
    fallback_after: float | None = None
    attempts: int = 0
    failures: int = 0  # of these attempts, not counting HTTP 429
    failed_seconds: float = 0.0  # seconds that the last attempt took, if it failed
    _earlier_usage: Usage = Usage()
    _last_usage: Usage = Usage()
    accepted: bool = False  # whether the provider has accepted the last attempt
    _running: bool = False
    first_at: float | None = None  # on Trio's clock: when the first piece of the last attempt's answer arrived
    bound: str | None = None  # for the audit log: tokens claimed and charged, if they differ
    _received_any: bool = False  # whether anything of the current attempt has arrived
    _characters: int = 0
    _unseen: int = 0
    _received_bytes: int = 0  # bytes
    _reported_usage: Usage | None = None

    @property
    def total_usage(self) -> Usage:
        """Usage of all attempts together."""
        return self._earlier_usage + self.last_usage

    @property
    def last_usage(self) -> Usage:
        """Usage of the last attempt. While it runs, or if aborted: its input and the output that has arrived."""
        return self._charged_usage(self._estimated_usage())[0] if self._running else self._last_usage

    @property
    def partly_delivered(self) -> bool:
        """Whether part of the answer has been delivered, so that the request can't be sent again."""
        return self.on_text is not None and self._characters > 0

    def change_model(self, model: str, fallback_after: float | None) -> None:
        """Send it to another model from now on; retries are counted anew."""
        self.question = self.question.for_model(model, self.question.max_tokens)
        self.fallback_after = fallback_after
        self.failures, self.retry_deadline, self.failed_seconds = 0, math.inf, 0.0

    def begin_attempt(self) -> None:
        self._earlier_usage, self._last_usage = self.total_usage, Usage()
        self.attempts += 1
        self.failed_seconds = 0.0
        self._running, self.accepted, self._received_any, self._reported_usage = True, False, False, None
        self.first_at = None
        self._characters = self._unseen = self._received_bytes = 0

    def receive(self, delta: Delta) -> None:
        self._received_any = True
        if self.first_at is None and (delta.text or delta.unseen or delta.begun):
            self.first_at = trio.current_time()
        self._characters += len(delta.text)
        self._unseen += delta.unseen
        self._received_bytes += utf8_length(delta.text) + delta.unseen
        self._reported_usage = delta.usage or self._reported_usage
        if self.on_usage is not None:
            self.on_usage()
        if delta.text and self.on_text is not None:
            self.on_text(delta.text)

    @property
    def max_characters(self) -> int:
        """Limit of the answer's characters: well above ``max_tokens``, if the request has that."""
        tokens = self.question.max_tokens
        return (
            MAX_ANSWER
            if tokens is None
            else min(MAX_ANSWER, 100 * CHARACTERS_PER_TOKEN + 4 * CHARACTERS_PER_TOKEN * tokens)
        )

    @property
    def is_too_long(self) -> bool:
        """Whether the answer is longer than :attr:`max_characters`."""
        return self._characters + self._unseen > self.max_characters

    @property
    def has_begun(self) -> bool:
        """Whether part of the current attempt had arrived: then the provider is reachable."""
        return self._received_any

    def record_answer(self, usage: Usage) -> None:
        """Record the final usage; counts that the provider didn't send are estimated."""
        self._end_attempt(self._complete(usage), usage)

    def record_failure(self, error: ProviderError) -> None:
        """Record a failed attempt. One that was accepted costs its input at least, one that was refused nothing."""
        if self._received_any or isinstance(error, Stalled) or (self.accepted and isinstance(error, Failing)):
            self._end_attempt(self._estimated_usage(), self._reported_usage or Usage())
        self._running = False

    def _end_attempt(self, claim: Usage, reported: Usage) -> None:
        """End the attempt with a claimed usage; ``reported`` is the usage that the provider reported."""
        self._last_usage, bound = self._charged_usage(claim)
        self._running = False
        if bound is not None and reported.total:
            self.bound = f"claimed {reported.total} tokens, charged {self._last_usage.total} (at {bound})"

    def _estimated_usage(self) -> Usage:
        counted = self._complete(self._reported_usage or Usage())
        return evolve(counted, output=max(counted.output, estimate_tokens(self._characters)))

    def _complete(self, counted: Usage) -> Usage:
        """The counts of the provider; those that it didn't send are estimated."""
        if not counted.generated:
            output, thinking = estimate_tokens(self._characters), estimate_tokens(self._unseen)
            counted = evolve(counted, output=output, thinking=thinking)
        return counted if counted.input else evolve(counted, input=self.input)

    def _charged_usage(self, claim: Usage) -> tuple[Usage, Bound | None]:
        """Limit a claim to what is charged for it; and which bound was used."""
        return limit_claim(claim, self.sent, self._received_bytes, self.question.max_tokens)
