"""The demo of three coding agents: their attempts are compared, one is taken, and the budget holds for all."""

import re

import pytest

from tests.demos.conftest import Run


def check(shown: str, ways: list[str]) -> None:
    assert [re.findall(rf"I ask by (.*{way})", shown) != [] for way in ways] == [True] * len(ways), shown
    verdicts = re.findall(r"^ +task-\d +(\w+)-coder +(passed|exit 1) ", shown, re.M)
    assert verdicts == [("anthropic", "exit 1"), ("openai", "passed"), ("gemini", "passed")], shown
    assert re.search(r"^tokens of all three: [\d,]+ of 60,000$", shown, re.M)


def test_three_programs_repair_one_repository_by_plain_http(run: Run) -> None:
    shown = run("three_agents", "--plain")

    check(shown, ["plain HTTP"])
    assert shown.count("by plain HTTP") == 3


@pytest.mark.usefixtures("long")
def test_three_programs_repair_one_repository_by_the_vendors_sdks(run: Run) -> None:
    for package in ("anthropic", "openai", "google.genai"):
        pytest.importorskip(package)

    check(run("three_agents"), ["Anthropic's SDK", "OpenAI's SDK", "Google's SDK"])
