"""One sending of a request to its model: what has arrived of the answer, and what it is charged."""

import trio
from attrs import define, evolve

from agentos.llm.providers.provider import CHARACTERS_PER_TOKEN, Delta, Failing, ProviderError, estimate_tokens
from agentos_sdk.values import Usage

from .claims import RequestSize, limit_claim, utf8_length

MAX_ANSWER = 16 << 20  # characters of one answer


class Stalled(Failing):
    """The provider accepted the request and then sent nothing for too long."""


@define(eq=False)
class Attempt:
    """``input`` is the estimate of its tokens; ``size`` and ``max_tokens``, of what was sent, bound what is charged."""

    input: int = 0
    size: RequestSize = RequestSize(0, 0)
    max_tokens: int | None = None
    accepted: bool = False  # whether the provider has accepted it
    has_begun: bool = False  # whether part of the answer has arrived: then the provider is reachable
    first_at: float | None = None  # on Trio's clock: when the first piece of the answer arrived
    characters: int = 0  # of text
    bound: str | None = None  # for the audit log: tokens claimed and charged, if they differ
    _unseen: int = 0
    _received: int = 0  # bytes
    _reported: Usage | None = None
    _used: Usage | None = None  # once it has ended

    def receive(self, delta: Delta) -> None:
        self.has_begun = True
        if self.first_at is None and (delta.text or delta.unseen or delta.begun):
            self.first_at = trio.current_time()
        self.characters += len(delta.text)
        self._unseen += delta.unseen
        self._received += utf8_length(delta.text) + delta.unseen
        self._reported = delta.usage or self._reported

    @property
    def usage(self) -> Usage:
        """What it has used. While it runs: its input, and the output that has arrived."""
        if self._used is not None:
            return self._used
        return limit_claim(self._estimate(), self.size, self._received, self.max_tokens)[0]

    @property
    def excess(self) -> int | None:
        """The limit of the answer's characters, if it is longer: well above ``max_tokens``, if the request has that."""
        limit = MAX_ANSWER if self.max_tokens is None else (100 + 4 * self.max_tokens) * CHARACTERS_PER_TOKEN
        limit = min(MAX_ANSWER, limit)
        return limit if self.characters + self._unseen > limit else None

    def end(self, reported: Usage, claim: Usage | None = None) -> None:
        """End with the usage that the provider reported, and charge what is plausible of it.

        ``claim`` is charged instead; ``None``: what was reported, with estimates of the counts that are missing.
        """
        claim = self._complete(reported) if claim is None else claim
        self._used, bound = limit_claim(claim, self.size, self._received, self.max_tokens)
        if bound is not None and reported.total:
            self.bound = f"claimed {reported.total} tokens, charged {self._used.total} (at {bound})"

    def fail(self, error: BaseException) -> None:
        """End without an answer. If the provider accepted it, its input is charged at least, otherwise nothing."""
        refused = isinstance(error, ProviderError) and not (
            self.has_begun or isinstance(error, Stalled) or (self.accepted and isinstance(error, Failing))
        )
        if refused:
            self._used = Usage()
        else:  # also one that was cancelled
            self.end(self._reported or Usage(), self._estimate())

    def _estimate(self) -> Usage:
        counted = self._complete(self._reported or Usage())
        return evolve(counted, output=max(counted.output, estimate_tokens(self.characters)))

    def _complete(self, counted: Usage) -> Usage:
        """The counts of the provider; those that it didn't send are estimated."""
        if not counted.generated:
            output, thinking = estimate_tokens(self.characters), estimate_tokens(self._unseen)
            counted = evolve(counted, output=output, thinking=thinking)
        return counted if counted.input else evolve(counted, input=self.input)
