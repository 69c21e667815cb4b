"""The last questions to the model and their answers, of each agent: kept in memory, for the operator alone.

Bounds: the texts of one question, the questions of one agent, and all together; the oldest are dropped first. Values of
the kernel's secrets are replaced before a question is kept.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from math import isfinite
from typing import Any

import msgspec
import trio
from attrs import define, field

from agentos.llm.providers.provider import Message
from agentos.llm.queue.request import Request
from agentos.services.http.secrets import Redactor
from agentos_sdk.encoding import codec
from agentos_sdk.values import CalledTool, KeptMessage, KeptQuestion, ToolCall, Usage

MAX_AGENT_BYTES = 4 << 20  # bytes of one agent
MAX_TOTAL_BYTES = 64 << 20  # bytes of all agents
MIN_AGENT_BYTES = 16 << 10  # bytes that each agent counts for in the total, so at most 4096 agents are kept
# Characters of one question. Encoded they have at most six bytes each, so a page with one of them is below 1 MiB.
MAX_SYSTEM, MAX_MESSAGES, MAX_ANSWER = 16 << 10, 48 << 10, 64 << 10
MAX_ERROR, MAX_NAME = 2000, 200  # characters
MAX_DEPTH = 32  # levels of nesting of a tool's arguments; a reply may have 64
ENTRY_BYTES = 150  # bytes that a kept question takes besides its encoded text
ITEM_COST = 64  # characters that each message, tool, argument and number counts for

CostOf = Callable[[str, Usage], float | None]


class Asker(msgspec.Struct, frozen=True):
    """The agent or guest that asks. ``family`` is the caller's: an agent with its descendants; ``digest`` names it."""

    agent_id: int
    name: str
    family: str
    digest: str


@define(eq=False)
class _Ring:
    """The questions of one agent, the oldest first, as encoded :class:`KeptQuestion` values by their ids."""

    name: str
    kept: deque[tuple[int, bytes]] = field(factory=deque)
    size: int = 0  # bytes

    @property
    def weight(self) -> int:
        return max(self.size, MIN_AGENT_BYTES)

    def drop_oldest(self) -> None:
        self.size -= len(self.kept.popleft()[1]) + ENTRY_BYTES


@define(eq=False)
class Contents:
    """Keeps the last ``most`` questions of each agent; 0 keeps none.

    ``keys`` are the model's API keys, ``list_secrets`` gives the values of further secrets.
    """

    most: int
    keys: Sequence[str] = field(default=(), repr=False)
    list_secrets: Callable[[], Sequence[str]] = tuple
    _ids: Iterator[int] = field(factory=lambda: count(1))
    _families: dict[str, OrderedDict[int, _Ring]] = field(factory=dict)  # by agent id, the last one asked last
    _weights: Counter[str] = field(factory=Counter)  # bytes by family

    @property
    def size(self) -> int:
        """Bytes of all kept questions."""
        return sum(ring.size for family in self._families.values() for ring in family.values())

    def keep(self, asker: Asker | None, request: Request, cost: CostOf) -> None:
        """Keep a question that has ended, with its answer or its error. Without ``asker`` it isn't kept."""
        if asker is not None and self.most:
            shortener = _Shortener((*self.keys, *self.list_secrets()))
            number = next(self._ids)
            self._add(asker, number, encode(build_question(number, asker, request, cost, shortener)))

    def read(
        self, agent_id: int | None, name: str | None, after: int | None, limit: int, most: int
    ) -> tuple[Sequence[bytes], bool]:
        """Return encoded questions, the oldest first, and whether there are more.

        They are the newest ones, or the first ones behind the id ``after``: at most ``limit``, and ``most`` bytes in
        all, but at least one.
        """
        rings = (
            ring
            for family in self._families.values()
            for number, ring in family.items()
            if agent_id in (None, number) and name in (None, ring.name)
        )
        found = sorted((each for ring in rings for each in ring.kept), key=lambda each: each[0], reverse=after is None)
        if after is not None:
            found = [each for each in found if each[0] > after]
        page: list[bytes] = []
        left = most
        for _, encoded in found[:limit]:
            left -= len(encoded)
            if page and left < 0:
                break
            page.append(encoded)
        return page if after is not None else page[::-1], len(page) < len(found)

    def _add(self, asker: Asker, number: int, encoded: bytes) -> None:
        rings = self._families.setdefault(asker.family, OrderedDict())
        ring = rings.pop(asker.agent_id, None) or _Ring(asker.name)
        self._weights[asker.family] -= ring.weight if ring.kept else 0
        rings[asker.agent_id] = ring
        ring.kept.append((number, encoded))
        ring.size += len(encoded) + ENTRY_BYTES
        while len(ring.kept) > self.most or ring.size > MAX_AGENT_BYTES:
            ring.drop_oldest()
        self._weights[asker.family] += ring.weight
        while self._weights.total() > MAX_TOTAL_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest question of an agent: the longest silent one in the family that holds most bytes."""
        family = max(self._weights, key=self._weights.__getitem__)
        rings = self._families[family]
        number, ring = next(iter(rings.items()))
        self._weights[family] -= ring.weight
        ring.drop_oldest()
        if ring.kept:
            self._weights[family] += ring.weight
        else:
            del rings[number]
        if not rings:
            del self._families[family], self._weights[family]


def encode(kept: KeptQuestion) -> bytes:
    try:
        # A copy: msgspec leaves up to half of its buffer behind the text allocated.
        return bytes(memoryview(msgspec.json.encode(kept)))
    except UnicodeEncodeError:  # half a surrogate pair
        return codec.encode(kept)


def build_question(number: int, asker: Asker, request: Request, cost: CostOf, shorten: "_Shortener") -> KeptQuestion:
    """The kept form of an ended question. The time it takes depends on the kept texts, not on all of them."""
    question, answer = request.question, request.result.answer if request.result is not None else None
    usage = answer.usage if answer is not None else request.total_usage
    total, served = trio.current_time() - request.arrived_at, request.served_seconds
    first_at = request.attempt.first_at
    system = None if question.system is None else shorten.begin(MAX_SYSTEM).text(question.system)
    messages = shorten.begin(MAX_MESSAGES).messages(question.messages)
    tools = [shorten.text(tool.name) for tool in islice(question.tools, max(0, shorten.room // ITEM_COST))]
    shorten.begin(MAX_ANSWER)
    text = shorten.text(answer.text if answer is not None else "")
    tool_calls = shorten.calls(answer.calls) if answer is not None else ()
    return KeptQuestion(
        id=number,
        at=request.at,
        agent_id=asker.agent_id,
        name=asker.name,
        model=shorten.begin(MAX_NAME).text(question.model),
        digest=asker.digest,
        system=system,
        messages=messages,
        left_out=len(question.messages) - len(messages),
        tools=tools,
        answer=text,
        tool_calls=tool_calls,
        answered_by=shorten.begin(MAX_NAME).text(answer.model) if answer is not None else None,
        finish_reason=answer.finish_reason if answer is not None else None,
        outcome=request.outcome,
        error=None if request.error is None else shorten.begin(MAX_ERROR).text(request.error),
        usage=usage,
        cost=cost(request.model, usage),
        attempts=request.attempts,
        queued_ms=round((total - served) * 1000, 3),
        first_token_ms=None if first_at is None else round((first_at - request.arrived_at) * 1000, 3),
        latency_ms=round(total * 1000, 3),
    )


class _Shortener:
    """Redacts secrets in texts and cuts them to ``room`` characters in all."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._whole = Redactor(secrets)
        self.room = 0

    def begin(self, room: int) -> "_Shortener":
        self.room = room
        return self

    def text(self, text: str) -> codec.Text:
        """The text without secrets. If it is cut, the number of characters that are left out stands at its end."""
        most = max(0, self.room)
        self.room -= len(text) + ITEM_COST
        if len(text) <= most:
            return codec.Text(self._whole.redact(text))
        return codec.Text(f"{self._whole.redact_cut(text, most)}… ({len(text) - most} characters more)")

    def messages(self, messages: Sequence[Message]) -> Sequence[KeptMessage]:
        """The newest messages that fit."""
        kept: list[KeptMessage] = []
        for message in reversed(messages):
            if self.room <= 0:
                break
            text, calls = self.text(message.text), self.calls(message.calls)
            kept.append(KeptMessage(role=message.role, text=text, images=len(message.images), tool_calls=calls))
        return kept[::-1]

    def calls(self, calls: Sequence[ToolCall]) -> Sequence[CalledTool]:
        kept = []
        for call in calls:
            if self.room <= 0:
                break
            kept.append(CalledTool(name=self.text(call.name), arguments=self.json(call.arguments)))
        return kept

    def json(self, value: Any, depth: int = 0) -> Any:
        """A JSON value with shortened texts, without values that don't fit or are nested too deep."""
        if isinstance(value, str):
            return self.text(value)
        self.room -= ITEM_COST
        if depth == MAX_DEPTH and isinstance(value, Mapping | Sequence):
            return "…"
        if isinstance(value, Mapping):
            kept = {}
            for name, inner in value.items():
                if self.room <= 0:
                    break
                kept[self.text(name)] = self.json(inner, depth + 1)
            return kept
        if isinstance(value, Sequence):
            items = []
            for inner in value:
                if self.room <= 0:
                    break
                items.append(self.json(inner, depth + 1))
            return items
        is_unusual = (
            abs(value) >= 1 << 63 if isinstance(value, int) else isinstance(value, float) and not isfinite(value)
        )
        return self.text(str(value)) if is_unusual else value
