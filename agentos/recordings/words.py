"""Finds the words that differ between two texts."""

# Lines that both texts begin or end with are left out first, so that a long output with one changed line is cheap. The
# rest is compared word by word. Where masks count, what one covers is one word, and equal to all else that it covers.

import difflib
import re
from collections.abc import Iterator

from agentos.llm.cassettes.recorded_question import MASKS, split_masked

MAX_WORDS = 2000  # of two texts between their common begin and end; longer ones are one difference
MAX_COMPARED = 1 << 20  # characters of two texts that are compared word by word, within 1.5 s
MAX_QUOTED = 160  # characters of a difference on each side
CONTEXT = 20  # characters that both sides of a long difference begin with
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_TIME = "|".join(
    [
        *(MASKS[name] for name in ("time", "date", "clock", "epoch", "duration")),
        rf"\b\d{{1,2}}(?:st|nd|rd|th|\.)? {_MONTH}(?:,? \d{{4}}\b)?",
        rf"\b{_MONTH} \d{{1,2}}\b(?:st|nd|rd|th)?(?:,? \d{{4}}\b)?",
        r"\b\d{1,2}[./-]\d{1,2}[./-]\d{4}\b",
        r"\b\d{1,2} ?[ap]m\b",
        r"\b\d+(?:\.\d+)? ?(?:m|min|mins|minutes?|h|hours?|days?|weeks?|months?|years?)\b",
        r"\b(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|today|yesterday|tomorrow)\b",
    ]
)
_WORD = re.compile(rf"\s+|(?=[0-9A-Zty])(?:{_TIME})|\w+|[^\w\s]")
_TIMES = re.compile(_TIME)

Covered = dict[str, None]
"""The names of masks, as keys."""


def compare_words(recorded: str, now: str, covered: Covered | None = None) -> Iterator[tuple[str, str]]:
    """What differs between two texts: the words of each side, cut to :data:`MAX_QUOTED` characters.

    With ``covered`` it isn't what built-in masks make equal, and the names of these masks are added to it.
    """
    if len(recorded) + len(now) > MAX_COMPARED:
        if recorded != now:
            same = count_common(recorded, now)
            yield quote(recorded[same:], now[same:])
        return
    recorded, now = _without_common_lines(recorded, now)
    old, new = (_split(text, covered is not None) for text in (recorded, now))
    shorter = min(len(old), len(new))
    begin = next((at for at in range(shorter) if old[at][0] != new[at][0]), shorter)
    end = next((at for at in range(shorter - begin) if old[-1 - at][0] != new[-1 - at][0]), shorter - begin)
    blocks: list[tuple[str, int, int, int, int]]
    blocks = [("equal", 0, begin, 0, begin), ("equal", len(old) - end, len(old), len(new) - end, len(new))]
    if len(old) + len(new) - 2 * (begin + end) > MAX_WORDS:
        blocks.insert(1, ("replace", begin, len(old) - end, begin, len(new) - end))
    else:
        a_keys, b_keys = ([key for key, _ in words[begin : len(words) - end]] for words in (old, new))
        found = difflib.SequenceMatcher(None, a_keys, b_keys, autojunk=False).get_opcodes()
        blocks[1:1] = [(tag, begin + a, begin + b, begin + c, begin + d) for tag, a, b, c, d in found]
    for tag, a, b, c, d in blocks:
        if tag != "equal":
            yield quote("".join(word for _, word in old[a:b]), "".join(word for _, word in new[c:d]))
        elif covered is not None:
            covered |= {one[0][1:-1]: None for one, other in zip(old[a:b], new[c:d], strict=True) if one != other}


def are_times(*texts: str) -> bool:
    """Whether each of these texts is time stamps, dates and durations only."""
    return all(_TIMES.search(text) and not re.search(r"\w", _TIMES.sub("", text)) for text in texts)


def _without_common_lines(one: str, other: str) -> tuple[str, str]:
    lines, others = one.splitlines(True), other.splitlines(True)
    shorter = min(len(lines), len(others))
    begin = next((at for at in range(shorter) if lines[at] != others[at]), shorter)
    end = next((at for at in range(shorter - begin) if lines[-1 - at] != others[-1 - at]), shorter - begin)
    return "".join(lines[begin : len(lines) - end]), "".join(others[begin : len(others) - end])


def _split(text: str, masked: bool) -> list[tuple[str, str]]:
    """The words of a text, each behind what it is compared by: itself, or the name of the mask that covers it."""
    found = list[tuple[str, str]]()
    for name, piece in split_masked(text) if masked else [(None, text)]:
        found += [(f"<{name}>", piece)] if name is not None else [(word, word) for word in _WORD.findall(piece)]
    return found


def count_common(one: str, other: str) -> int:
    """How many characters two texts have in common at their begin."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def quote(recorded: str, now: str) -> tuple[str, str]:
    """Two texts, cut to where they begin to differ."""
    skipped = 0
    if max(len(recorded), len(now)) > MAX_QUOTED:
        skipped = max(0, count_common(recorded, now) - CONTEXT)
    texts = [f"{'…' if skipped else ''}{text[skipped:]}" for text in (recorded, now)]
    old, new = (text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…" for text in texts)
    return old, new
