"""The permissions demo: ten attempts, each decided and written down, in a log in which a change is found."""

import re

from tests.demos.conftest import Run

DECIDED = ["ALLOW", "ALLOW", "DENY", "DENY", "ALLOW", "DENY", "DENY", "ASK", "DENY", "DENY"]


def test_each_attempt_has_its_decision_its_rule_and_its_entry(run: Run) -> None:
    shown = run("permissions")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    table = shown.partition("ENTRY\n")[2].partition("\n\n")[0]
    rows = [re.fullmatch(r" *(\d+)  (.{33})(\w+) +(.*?) +(\d+)", line) for line in table.splitlines()]
    found = [row.groups() for row in rows if row is not None]
    assert [decision for _, _, decision, _, _ in found] == DECIDED
    assert all(rule for _, _, _, rule, _ in found)
    numbers = [int(entry) for *_, entry in found]
    assert numbers == sorted(set(numbers))
    assert "rule      deny read /etc/shadow" in shown.partition("To ask without doing")[2]
    whole, _, forged = shown.partition("Is the log whole?")[2].partition("And if one word in it is changed?")
    assert f"entry {numbers[2]}" not in whole
    assert f"entry {numbers[2]}: it or an entry before it was changed" in forged
