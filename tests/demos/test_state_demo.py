"""state: neither the end of an agent nor that of its kernel loses what was stored."""

import re

from tests.demos.conftest import Run


def test_a_count_and_a_till_outlive_their_agents_and_their_kernel(run: Run) -> None:
    shown = run("state")

    counts = [int(count) for count in re.findall(r"counter \| going on after (\d+)", shown)]
    assert len(counts) == 2
    assert 10 <= counts[0] <= counts[1]
    assert "In the till are 200 coins." in shown
    assert len(re.findall(r"(?:anna|bert) \| put in 100 coins", shown)) == 2
    assert "deny: FETCH till" in shown
