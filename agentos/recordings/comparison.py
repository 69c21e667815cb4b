"""Compares two recorded lives call by call: which are the same, what differs, and which only one of them has."""

# Calls are paired as a replay finds its answers, so that order and threads don't count. The same question with another
# answer is a difference, too: from there on two lives go their own ways.

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import frozen

from agentos.llm.cassettes.recorded_question import digest_masked, write_canonical

from .format import Json
from .masks import NO_MASKS, Masks
from .matching import UNSEEN, Difference, Matcher, Miss, list_differences
from .reader import RecordedCall
from .words import Covered

NOISE = frozenset(
    {
        "model",
        "requested_model",
        "tokens",
        "usage",
        "cost",
        "cached",
        "context",
        "queued_ms",
        "latency_ms",
        "duration_ms",
        "elapsed_ms",
    }
)


@frozen
class Pair:
    """A call of each life, and how they differ; one of them is None if only the other life has it.

    ``masks`` are the names of those that made it equal.
    """

    first: RecordedCall | None
    second: RecordedCall | None
    differences: Sequence[Difference] = ()
    why: str = ""
    masks: Sequence[str] = ()

    @property
    def differs(self) -> bool:
        return self.first is None or self.second is None or bool(self.differences)


def pair_calls(
    first: Iterable[RecordedCall], second: Iterable[RecordedCall], masks: Masks = NO_MASKS
) -> Sequence[Pair]:
    """The calls of the second life in the order of their begins, each with the first's, and then what is left of that.

    In differences ``recorded`` is the first life's text. Takes as long as a replay of the second life would.
    """
    matcher, pairs = Matcher(masks), list[Pair]()
    for call in sorted(first, key=lambda call: call.begin):
        if call.call not in UNSEEN:
            matcher.add(call)
    for call in sorted(second, key=lambda call: call.begin):
        if call.call in UNSEEN:
            continue
        found = matcher.find(call.call, call.request)
        if isinstance(found, Miss):
            pairs.append(Pair(None, call, found.differences, found.why))
        else:
            differences = [*found.drift, *compare_answers(found.call.reply, call.reply, masks)]
            used = [] if differences else [*found.masks, *masks.list_used(found.call.reply, call.reply)]
            pairs.append(Pair(found.call, call, differences, masks=list(dict.fromkeys(used))))
    return [*pairs, *(Pair(call, None, why="it wasn't made") for call in matcher.unused())]


def compare_answers(first: Json | None, second: Json | None, masks: Masks = NO_MASKS) -> Iterator[Difference]:
    """How two answers differ, but for what is measured, and what masks cover."""
    if first is None or second is None:
        if first is not second:
            said = ["none" if reply is None else "an answer" for reply in (first, second)]
            yield Difference("answer", "answer", *said)
        return
    for key in dict.fromkeys([*first, *second]):
        old, new = (_without_ids(key, reply.get(key)) for reply in (first, second))
        one, other = (digest_masked(write_canonical(masks.apply(each))) for each in (old, new))
        if key not in NOISE and one != other:
            yield from list_differences(f"answer's {key}", masks.apply(old), masks.apply(new), "answer", Covered())


def _without_ids(key: str, value: Any) -> Any:
    """Calls of tools without the ids that vendors draw."""
    if key != "tool_calls" or not isinstance(value, list):
        return value
    return [{key: one[key] for key in one.keys() - {"id"}} if isinstance(one, dict) else one for one in value]


@frozen
class Use:
    """What questions have used. ``cost`` is None if a model has no price."""

    tokens: int = 0
    cost: float | None = 0.0


def sum_use(calls: Iterable[RecordedCall]) -> Use:
    """What the answered questions among these calls have used."""
    tokens, cost = 0, 0.0
    priced = True
    for call in calls:
        if call.call == "THINK" and call.reply is not None and call.reply.get("success") is True:
            tokens += int(call.reply.get("tokens") or 0)
            priced &= call.reply.get("cost") is not None
            cost += call.reply.get("cost") or 0.0
    return Use(tokens, cost if priced else None)
