"""Judges each attack by the attacker's report and by what was observed outside, and formats the results."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from .inside.checks import BY_NAME, COMPARED
from .inside.frame import Check

ORDER = ("blocked", "accepted", "escaped", "unclear", "n/a")


@frozen
class Verdict:
    """The result of a check.

    ``outcome`` is blocked, escaped, accepted (no protection is promised), n/a, or unclear (no attack took place).
    """

    check: str
    outcome: str
    detail: str


def judge(
    reported: Mapping[str, tuple[str, str]], observed: Mapping[str, str], accepted: Mapping[str, str]
) -> list[Verdict]:
    """A verdict on each check: blocked only if both the attacker and the observations outside say so."""
    return [_judge(check, reported.get(check.name), observed.get(check.name), accepted) for check in BY_NAME.values()]


def _judge(check: Check, report: tuple[str, str] | None, observed: str | None, accepted: Mapping[str, str]) -> Verdict:
    outcome, detail = report or ("unclear", "the attacker ended before this check")
    if observed is not None:
        outcome, detail = "escaped", f"{detail}; outside: {observed}"
    elif outcome == "tried":
        outcome, detail = "blocked", f"nothing of it outside: {detail}"
    if check.name in accepted and outcome in ("blocked", "escaped"):  # a CPU hog may be slow by chance
        return Verdict(check.name, "accepted", f"{accepted[check.name]} ({detail})")
    return Verdict(check.name, outcome, detail)


def count_outcomes(verdicts: Sequence[Verdict]) -> str:
    """The number of each outcome among the checks that compare tools: ``64 blocked, 1 accepted of 65``."""
    names = {check.name for check in COMPARED}
    return _count([verdict for verdict in verdicts if verdict.check in names])


def _count(verdicts: Sequence[Verdict]) -> str:
    counts = {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in ORDER}
    words = {"n/a": "not applicable"}
    reported = ", ".join(f"{count} {words.get(outcome, outcome)}" for outcome, count in counts.items() if count)
    return f"{reported} of {len(verdicts)}"


def format_table(verdicts: Sequence[Verdict]) -> str:
    """A table for people: what was tried, the outcome, and what blocks it."""
    return "\n".join([*_rows(verdicts), "", *_sums(verdicts)])


def _rows(verdicts: Sequence[Verdict]) -> Iterator[str]:
    rows = [("CHECK", "WHAT IS TRIED", "OUTCOME", "BY WHAT")]
    for verdict in verdicts:
        check = BY_NAME[verdict.check]
        by = check.wall if verdict.outcome == "blocked" else verdict.detail
        rows.append((verdict.check, check.tries, verdict.outcome, by))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])


def _sums(verdicts: Sequence[Verdict]) -> Iterator[str]:
    names = {check.name for check in COMPARED}
    yield count_outcomes(verdicts)
    yield f"further attacks: {_count([verdict for verdict in verdicts if verdict.check not in names])}"


def to_json(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The verdicts as JSON values."""
    checks = ((verdict, BY_NAME[verdict.check]) for verdict in verdicts)
    return [
        {"check": check.name, "tries": check.tries, "outcome": each.outcome, "wall": check.wall, "detail": each.detail}
        for each, check in checks
    ]
