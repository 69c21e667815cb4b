"""Judges each attack by the attacker's report and by what was observed outside, and formats the results."""

import json
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


def judge(said: Mapping[str, tuple[str, str]], seen: Mapping[str, str], accepted: Mapping[str, str]) -> list[Verdict]:
    """A verdict on each check: blocked only if both the attacker and the observations outside say so."""
    return [_judge(check, said.get(check.name), seen.get(check.name), accepted) for check in BY_NAME.values()]


def _judge(check: Check, said: tuple[str, str] | None, seen: str | None, accepted: Mapping[str, str]) -> Verdict:
    outcome, detail = said or ("unclear", "the attacker didn't come to it")
    if seen is not None:
        outcome, detail = "escaped", f"{detail}; outside: {seen}"
    elif outcome == "tried":
        outcome, detail = "blocked", f"nothing of it outside: {detail}"
    if check.name in accepted and outcome in ("blocked", "escaped"):  # a CPU hog may be slow by chance
        return Verdict(check.name, "accepted", f"{accepted[check.name]} ({detail})")
    return Verdict(check.name, outcome, detail)


def totals(verdicts: Sequence[Verdict]) -> str:
    """The number of each outcome among the checks that compare tools: ``64 blocked, 1 accepted of 65``."""
    names = {check.name for check in COMPARED}
    return _count([verdict for verdict in verdicts if verdict.check in names])


def _count(verdicts: Sequence[Verdict]) -> str:
    counts = {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in ORDER}
    words = {"n/a": "not applicable"}
    said = ", ".join(f"{count} {words.get(outcome, outcome)}" for outcome, count in counts.items() if count)
    return f"{said} of {len(verdicts)}"


def table(verdicts: Sequence[Verdict]) -> str:
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
    yield totals(verdicts)
    yield f"further attacks: {_count([verdict for verdict in verdicts if verdict.check not in names])}"


def as_values(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The verdicts as JSON values."""
    found = []
    for verdict in verdicts:
        check = BY_NAME[verdict.check]
        found.append(
            {
                "check": check.name,
                "tries": check.tries,
                "outcome": verdict.outcome,
                "wall": check.wall,
                "detail": verdict.detail,
            }
        )
    return found


def dumped(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as JSON, for another process."""
    return json.dumps([[verdict.check, verdict.outcome, verdict.detail] for verdict in verdicts])


def loaded(text: str) -> list[Verdict]:
    """Parse the result of :func:`dumped`."""
    return [Verdict(*row) for row in json.loads(text)]
