"""Answers kept for equal questions: ``[llm] cache``. An equal question within its lifetime isn't sent to the model."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
import trio
from attrs import define, evolve, field
from msgspec.structs import replace

from agentos.llm.providers.provider import Question
from agentos.llm.queue.request import ThinkResult
from agentos.threads import run_in_thread
from agentos_sdk.encoding import codec
from agentos_sdk.values import Usage

MAX_TOTAL_BYTES = 64 << 20  # bytes of answers that are kept for all agents
MAX_ANSWER_BYTES = 1 << 20  # bytes of an answer that is kept
ENTRY_BYTES = 1 << 10  # bytes that an answer counts at least
MAX_INLINE_BYTES = 64 << 10  # bytes of a question that is hashed in the event loop; larger ones in a thread
COMPLETE = ("stop", "tool_calls")  # finish reasons of answers that are kept

Key = bytes
SHARED = ""  # the owner of all answers where agents share them; no account has this name


class _Kept(NamedTuple):
    until: float  # on Trio's clock
    size: int
    result: ThinkResult


@define(eq=False)
class ResponseCache:
    """Answers by agent and question, for ``lifetime`` seconds; 0 keeps none. In memory, and bounded.

    Questions are equal if all that is sent is, tools and parameters too, and the agent may use the same models for it.
    ``shared``: an answer that one agent got is given to all. A full cache drops the oldest answer of the agent that has
    the most bytes in it.
    """

    lifetime: float = 0.0
    shared: bool = False
    _answers: dict[str, OrderedDict[Key, _Kept]] = field(factory=dict)  # by agent, the oldest first
    _bytes: Counter[str] = field(factory=Counter)  # by agent

    async def hash(self, question: Question, models: Sequence[str]) -> Key | None:
        """The question, and the models that may answer it, as a key; None if it has none."""
        large = question.size > MAX_INLINE_BYTES
        return await run_in_thread(hash_question, question, models) if large else hash_question(question, models)

    def get(self, agent: str, key: Key) -> ThinkResult | None:
        """The answer to an equal question: it took no time and cost nothing."""
        owner = SHARED if self.shared else agent
        kept = self._answers.get(owner, OrderedDict()).get(key)
        if kept is None:
            return None
        if kept.until <= trio.current_time():
            self._drop(owner, key)
            return None
        return kept.result

    def put(self, agent: str, key: Key, result: ThinkResult) -> None:
        """Keep a complete answer. Incomplete ones, and those of more than 1 MiB, aren't kept."""
        answer = result.answer
        if answer.finish_reason not in COMPLETE:
            return
        size = ENTRY_BYTES + len(answer.text) * 4 + len(answer.logprobs or b"")
        size += sum(len(codec.encode(call)) for call in answer.calls)
        if size > MAX_ANSWER_BYTES:
            return
        owner = SHARED if self.shared else agent
        self._drop(owner, key)
        free = evolve(answer, usage=Usage())
        cost = None if result.cost is None else 0.0
        kept = replace(result, answer=free, queued=0.0, latency=0.0, bound=None, cost=cost, cached=True)
        self._answers.setdefault(owner, OrderedDict())[key] = _Kept(trio.current_time() + self.lifetime, size, kept)
        self._bytes[owner] += size
        while self._bytes.total() > MAX_TOTAL_BYTES:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._drop(largest, next(iter(self._answers[largest])))

    def remove_agent(self, agent: str) -> None:
        """Forget the answers of an agent that has ended for good."""
        self._answers.pop(agent, None)
        self._bytes.pop(agent, None)

    def _drop(self, owner: str, key: Key) -> None:
        answers = self._answers.get(owner)
        if answers is not None and (kept := answers.pop(key, None)) is not None:
            self._bytes[owner] -= kept.size
            if not answers:
                self.remove_agent(owner)


def hash_question(question: Question, models: Sequence[str]) -> Key | None:
    """Hash all of a question, and the models that may answer it; 16 MiB take 15 ms.

    None if a number in it has more than 64 bits: the format has none.
    """
    try:
        return sha256(msgspec.msgpack.encode((models, question))).digest()
    except OverflowError:
        return None
