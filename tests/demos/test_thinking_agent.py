"""The thinking agent: it streams, its tool calculates, and it talks with whoever sits at the terminal."""

import re

from tests.demos.conftest import Run


def test_it_answers_by_its_script_and_its_tool_calculates(run: Run) -> None:
    shown = run("thinking_agent")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    assert "tool:  multiply(a=17239, b=4711) = 81212929" in shown
    assert "agent: It is 81212929, says my tool" in shown
    assert "agent: A red disc on white." in shown
    counted = [int(tokens) for tokens in re.findall(r"\(offline, (\d+) tokens", shown)]
    assert counted[2] - counted[1] > 250  # the picture's


def test_each_line_typed_to_it_is_answered_from_the_same_conversation(run: Run) -> None:
    shown = run("thinking_agent", "--talk", given="hello\x1b[31m there\n\n6 times 7\n")

    assert r"agent: [offline echo, no model was asked] hello\x1b[31m there" in shown
    assert "tool:  multiply(a=6, b=7) = 42" in shown
    assert "agent: It is 42, says my tool" in shown


def test_a_real_model_needs_a_key_and_says_which(run: Run) -> None:
    said = run("thinking_agent", "--real", fails=True)

    assert "set its key, GEMINI_API_KEY, GOOGLE_API_KEY, OPENAI_API_KEY or ANTHROPIC_API_KEY" in said


def test_a_real_model_that_cannot_be_asked_ends_it_without_a_word_of_the_key(run: Run) -> None:
    key = "sk-nothing-but-a-test"

    said = run(
        "thinking_agent",
        "--real",
        env={"OPENAI_API_KEY": key, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
        fails=True,
    )

    assert key not in said
