"""Every recorded trace of the real supervisor, replayed."""

import json
from pathlib import Path

import pytest

from tests.supervisors.otp.otp_replay import load, main, replay
from tests.supervisors.otp.otp_world import Json
from tests.support.runs.rows import each_row

TRACES = Path(__file__).with_name("traces.json")
SCENARIOS = load(str(TRACES))


@each_row("scenario", SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def test_the_library_does_what_otp_did(scenario: Json) -> None:
    assert replay(scenario) is None


@pytest.mark.parametrize("part", ["result", "events", "state"])
def test_the_replay_notices_a_trace_that_is_wrong(part: str) -> None:
    scenario = json.loads(json.dumps(SCENARIOS[0]))
    scenario["trace"][1][part] = {"result": "no", "events": ["+nobody#1"], "state": {"nobody": {}}}[part]

    assert "step 1" in (replay(scenario) or "")


def test_a_scenario_that_breaks_the_replay_is_a_mismatch_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {**SCENARIOS[0], "name": "broken", "steps": [{"dance": "root"}], "trace": SCENARIOS[0]["trace"][:2]}
    file = tmp_path / "traces.json"
    file.write_text(json.dumps({"format": "otp-supervisor-traces/1", "scenarios": [broken, SCENARIOS[1]]}))

    status = main([str(file)])

    assert status == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 scenarios, 1 mismatches"
