"""The pipeline demo: five questions, five verified answers, and a reasoner that is killed in between."""

import re

from tests.demos.conftest import Run

ANSWERS = {
    "3 * 12 - 7": 29,
    "(48 + 6) / 9": 6,
    "8 * 72 - 415": 161,
    "3 * 12 + 2 * 4": 44,
    "15 * 6 + 40 - 28": 102,
}


def test_five_questions_get_five_verified_answers_from_four_processes_although_one_is_killed(run: Run) -> None:
    shown = run("pipeline")

    reported = re.findall(r"orchestrator \|    (.+) = (\d+)\n.* orchestrator \|    verified by going back: ", shown)
    assert reported == [(expression, str(answer)) for expression, answer in ANSWERS.items()]
    assert "5 of 5 answers verified" in shown

    killed = re.search(r"\$ kill -9 (\d+)", shown)
    lives = re.findall(r"kernel \| reasoner: running \(pid (\d+)\)", shown)
    assert killed is not None
    assert lives[0] == killed[1]
    assert len(set(lives)) == 2
    assert "question 3 again" in shown

    assert re.search(r"verifier \| question 4: 152 - 8 = 144, 144 / 12 = 12, not 3: WRONG", shown)
    assert "reasoner | question 4: thinking (careful)" in shown

    pids = dict(re.findall(r"kernel \| (\w+): running \(pid (\d+)\)", shown))
    assert set(pids) == {"orchestrator", "verifier", "reasoner", "parser"}
    assert len(set(pids.values())) == 4
