"""The contention demo: its tables say what was so, and the kernel's way is the fair one."""

import re
from collections.abc import Sequence

import pytest

from demos.llm_contention.figures import Result, Summary, fairness, rows
from tests.demos.conftest import Interrupted, Run
from tests.support.runs.rounds import some

FIVE = ["ada", "bert", "cleo", "dora", "emil"]


def tables(shown: str) -> list[list[list[str]]]:
    """What stands in columns, at least four, three spaces apart: each table's lines, each line's cells."""
    found: list[list[list[str]]] = [[]]
    for line in shown.splitlines():
        cells = re.split(r" {2,}", line.strip())
        if len(cells) > 3:
            found[-1].append(cells)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


@pytest.mark.usefixtures("long")
def test_the_kernel_answers_every_agent_and_is_fairer_than_the_other_ways(run: Run) -> None:
    shown = run("llm_contention")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    alone, flooded, ways = tables(shown)
    assert [line[:3] for line in alone[1:]] == [[name, "3", "100 %"] for name in FIVE]
    assert [line[:3] for line in flooded[1:]] == [[name, "8", "100 %"] for name in FIVE] + [["flooder", "16", "100 %"]]
    assert [line[0] for line in ways[1:]] == ["direct", "one queue", "the kernel"]
    direct, queue, ours = (dict(zip(ways[0], line, strict=True)) for line in ways[1:])
    assert int(direct["429s"]) > 0
    assert queue["failed"] == ours["failed"] == "0 of 56"
    assert float(ours["fairness"]) > max(float(direct["fairness"]), float(queue["fairness"]))


@pytest.mark.parametrize("when", some(["The same without the kernel", "ask three questions each"], 1))
def test_stopped_in_the_middle_it_leaves_nothing(when: str, interrupted: Interrupted) -> None:
    interrupted("llm_contention", when)


# -- Its figures -------------------------------------------------------------------------------------------------------


def result(answered_at: float, cost: float = 10.0, **more: float) -> Result:
    told = {"asked_at": 0.0, "waited": 1.0, "tokens": 5, "refused": 0} | more
    return Result(answered=cost > 0, answered_at=answered_at, cost=cost, **told)  # type: ignore[arg-type]


def of(**ends: Sequence[float]) -> dict[str, list[Result]]:
    return {agent: [result(end) for end in own] for agent, own in ends.items()}


def test_it_is_fair_when_all_have_got_the_same_until_the_first_has_gone() -> None:
    assert fairness(of(a=[1, 3], b=[2, 4, 9, 9], c=[2, 3, 5])) == pytest.approx(0.93, abs=0.01)
    assert fairness(of(a=[1, 3], b=[1, 3, 9])) == 1.0
    assert fairness(of(a=[1, 3], b=[7, 8], c=[7, 8], d=[7, 8])) == 0.25


def test_what_a_question_waited_is_what_the_provider_did_not_work() -> None:
    told = {"success": True, "asked_at": 1.0, "answered_at": 3.0, "worked_ms": 500, "tokens": 30, "refused": 2}

    read = Result.read(told | {"usage": {"input": 10, "output": 20}})

    assert (read.took, read.waited, read.cost, read.refused) == (2.0, 1.5, 50, 2)


def test_a_question_that_failed_waited_all_the_time_and_got_nothing() -> None:
    told = {"success": False, "error": "429", "asked_at": 1.0, "answered_at": 3.0, "worked_ms": 0.0, "refused": 5}

    read = Result.read(told)

    assert (read.answered, read.waited, read.cost, read.tokens) == (False, 2.0, 0, 0)


def test_a_line_of_the_table_is_one_agent() -> None:
    own = [result(2.0), result(4.0, cost=0, tokens=0)]

    assert rows({"ada": own}) == [("ada", "2", "50 %", "3.000 s", "1.000 s", "5")]


def test_a_summary_leaves_the_flooder_out_of_the_waits_alone() -> None:
    results = {"ada": [result(2.0, waited=1.0), result(4.0, waited=2.0)], "flooder": [result(9.0, waited=8.0, cost=0)]}

    found = Summary.of(results, "flooder")

    assert (found.light_mean, found.light_longest, found.all_done) == (1.5, 2.0, 9.0)
    assert (found.failed, found.asked) == (1, 3)
