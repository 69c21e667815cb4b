"""The demo of three coding agents: their attempts are compared, one is taken, and the budget holds for all."""

import re
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from tests.demos.conftest import Run
from tests.support.runs.rounds import some

SDKS = ("anthropic", "openai", "google.genai")  # whose import takes most of the CPU time
PLAIN, BY_SDKS = ["plain HTTP"] * 3, ["Anthropic's SDK", "OpenAI's SDK", "Google's SDK"]


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize(("options", "ways"), some([(["--plain"], PLAIN), ([], BY_SDKS)], 1))
def test_three_programs_repair_one_repository(run: Run, options: Sequence[str], ways: Sequence[str]) -> None:
    if not options and (missing := [package for package in SDKS if find_spec(package) is None]):
        pytest.skip(f"{', '.join(missing)} isn't installed: the SDKs are NOT tested")

    shown = run("three_agents", *options)

    assert [way for way in ways if not re.search(rf"I ask by .*{way}", shown)] == [], shown
    assert shown.count("by plain HTTP") == ways.count("plain HTTP"), shown
    verdicts = re.findall(r"^ +task-\d +(\w+)-coder +(passed|exit 1) ", shown, re.M)
    assert verdicts == [("anthropic", "exit 1"), ("openai", "passed"), ("gemini", "passed")], shown
    assert re.search(r"^tokens of all three: [\d,]+ of 60,000$", shown, re.M)
