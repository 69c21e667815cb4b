"""``agentos recordings diff``: two recorded lives compared, such as one that failed and a fork of it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from agentos.recordings.comparison import Pair, Use, pair_calls, sum_use
from agentos.recordings.format import LIFE, Life
from agentos.recordings.masks import join_masks
from agentos.recordings.reader import RecordedCall
from agentos.userland.cli.common import Failed, plural, print_lines
from agentos.userland.recordings.calls import describe_object

from .recordings import open_recording, readable

MAX_LINE = 100  # characters of a call
MAX_LISTED = 20  # calls that only one has, and words of the first one that differs


@frozen
class Side:
    """A recorded life: the recording's name, the life's calls, and the recording's masks."""

    name: str
    life: Life
    calls: Sequence[RecordedCall]
    masks: Sequence[str]

    @property
    def use(self) -> Use:
        return sum_use(self.calls)


def show_diff(first: str, second: str, state_dir: Path | None, as_json: bool) -> int:
    """Print how the life ``second`` differs from ``first``; the exit status."""
    sides = [open_side(name, state_dir) for name in (first, second)]
    with readable():
        pairs = pair_calls(sides[0].calls, sides[1].calls, join_masks(*(side.masks for side in sides)))
    differing = [pair for pair in pairs if pair.differs]
    a, b = (describe_side(side) for side in sides)
    counted = {"same": len(pairs) - len(differing), "masks": count_masks(pairs)}
    value = {"a": a, "b": b, **counted, "differing": [describe_pair(pair) for pair in differing]}
    print_lines(list_lines(sides, pairs, differing), value, as_json)
    return 1 if differing else 0


def open_side(given: str, state_dir: Path | None) -> Side:
    """The life that is named; raises :class:`Failed` if there is none."""
    name, _, wanted = given.rpartition(":")
    if not LIFE.fullmatch(wanted):
        name, wanted = given, ""
    found = open_recording(name, state_dir)
    lives = [life for life in found.manifest.lives if wanted in ("", life.life)]
    if not lives:
        there = ", ".join(life.life for life in found.manifest.lives) or "none"
        raise Failed(f"{name} has no life{f' {wanted}' if wanted else ''}; it has {there}")
    with readable():
        return Side(found.manifest.name, lives[-1], [*found.calls(lives[-1].life)], found.manifest.masks)


def describe_side(side: Side) -> dict[str, Any]:
    return {"name": side.name, "life": side.life.life, "calls": len(side.calls), "exit": side.life.exit,
            **asdict(side.use)}  # fmt: skip


def describe_pair(pair: Pair) -> dict[str, Any]:
    calls = {"a": pair.first, "b": pair.second}
    numbers = {key: None if call is None else call.begin for key, call in calls.items()}
    return {
        "call": (pair.second or pair.first).call,  # type: ignore[union-attr]
        **numbers,
        "why": pair.why,
        "differences": [{"where": one.where, "a": one.recorded, "b": one.now} for one in pair.differences],
    }


def count_masks(pairs: Sequence[Pair]) -> Counter[str]:
    """How many calls each mask has made equal."""
    return Counter(mask for pair in pairs for mask in pair.masks)


def list_lines(sides: Sequence[Side], pairs: Sequence[Pair], differing: Sequence[Pair]) -> list[str]:
    """What a person reads."""
    lines = []
    for letter, side in zip("AB", sides, strict=True):
        cost = "cost unknown" if side.use.cost is None else f"cost {side.use.cost:.4g}"
        use = f"{plural(len(side.calls), 'call')}, {side.use.tokens:,} tokens, {cost}"
        lines.append(f"{letter}  {side.name}, {side.life.life}: {use}: {side.life.exit or 'no end is recorded'}")
    lines.append(f"{plural(len(pairs) - len(differing), 'call')} the same, {len(differing)} not")
    if masks := count_masks(pairs):
        lines.append(f"equal after masks: {', '.join(f'{name} ({count})' for name, count in masks.items())}")
    if differing:
        lines += describe_first(differing[0])
    for letter, calls in (
        ("A", [pair.first for pair in differing if pair.first is not None and pair.second is None]),
        ("B", [pair.second for pair in differing if pair.second is not None and pair.first is None]),
    ):
        if calls:
            lines.append(f"only {letter} has {plural(len(calls), 'call')}:")
            named = (f"  {call.begin}  {call.call} {describe_object(call)}" for call in calls[:MAX_LISTED])
            lines += [line.rstrip()[:MAX_LINE] for line in named]
        if len(calls) > MAX_LISTED:
            lines.append(f"  and {len(calls) - MAX_LISTED} more: --json has all")
    return lines


def describe_first(pair: Pair) -> list[str]:
    """The first call that differs, with its words."""
    if pair.first is not None and pair.second is not None:
        answers = all(one.kind == "answer" for one in pair.differences)
        where = f"call {pair.first.begin} of A, {pair.second.begin} of B, {pair.first.call}"
        said = "asked the same, answered otherwise" if answers else "the words differ"
    elif pair.second is not None:
        where, said = f"call {pair.second.begin} of B, {pair.second.call}", pair.why
    else:
        assert pair.first is not None, "a call of one of them"
        where, said = f"call {pair.first.begin} of A, {pair.first.call}", "B ended without it"
    words = [f"  {one.where}: A {one.recorded!r}, B {one.now!r}" for one in pair.differences[:MAX_LISTED]]
    return [f"first difference: {where}: {said}", *words]
