"""Where two texts differ, for people: the place, and what stands there in each."""

MAX_QUOTED = 160  # characters of a line that a difference quotes

Difference = tuple[str, str, str]
"""The place, what was asked, and what is recorded."""


def find_difference(where: str, asked: str, recorded: str) -> Difference:
    """The first line in which they differ; ``where`` gets its number if either has several."""
    lines, others = asked.split("\n"), recorded.split("\n")
    same = next((at for at, pair in enumerate(zip(lines, others, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(lines), len(others)) if same is None else same
    mine, other = (each[at] if at < len(each) else "(nothing)" for each in (lines, others))
    begin = next((n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), 0)
    begin = max(0, begin - MAX_QUOTED // 2)
    return (
        where if len(lines) == len(others) == 1 else f"{where}, line {at + 1}",
        shorten(mine[begin:]),
        shorten(other[begin:]),
    )


def shorten(text: str) -> str:
    """The text, or its begin."""
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"
