"""A recorded question is asked anew, and a life is forked at it, from its page."""

from typing import Any

import pytest

from agentos.userland.web.links import Role
from tests.support.kernel import Kernel
from tests.web.chromium import Open, find_chromium, violations
from tests.web.conftest import browser_of

from .conftest import begin_two_checked_forks


@pytest.fixture
def question(open_page: Open) -> Any:
    """The page of a recorded life, with its second question open."""
    find_chromium()
    page = open_page("recordings?rec=coder-1")
    page.locator(".waterfall").get_by_role("button", name="THINK").nth(1).click()
    page.get_by_label("answer").wait_for()
    return page


def test_a_question_is_asked_of_another_model_and_the_answers_stand_side_by_side(question: Any) -> None:
    question.get_by_label("model", exact=True).fill("fast")
    question.get_by_role("button", name="ask again").click()

    answers = question.locator(".answers .block")
    answers.nth(1).get_by_text("quick").wait_for()
    assert "wise (recorded)" in answers.nth(0).inner_text()
    assert "said 1" in answers.nth(0).inner_text()
    assert "cost" in answers.nth(1).inner_text()
    assert violations(question) == []


def test_a_fork_begins_after_its_rights_were_shown_and_is_a_branch_of_its_recording(question: Any) -> None:
    assert question.get_by_role("combobox", name="agents").count() == 0  # of one agent
    question.get_by_label("answer").fill("another answer")
    question.get_by_role("button", name="fork from here…").click()
    shown = question.get_by_role("alertdialog")
    shown.get_by_text("sandboxed", exact=True).wait_for()
    shown.get_by_text("state_write", exact=True).wait_for()
    assert violations(question) == []
    shown.get_by_role("button", name="begin the fork").click()

    ended = question.get_by_role("status").filter(has_text="has ended; before the question: identical")
    fork = ended.get_by_role("link").inner_text()
    question.locator(".branches").get_by_role("link", name=fork).click()
    question.get_by_text(", live from call").wait_for()
    question.locator(".waterfall").get_by_role("button", name="THINK").last.click()
    question.locator(".detail pre", has_text="another answer").first.wait_for()
    assert violations(question) == []


def test_forks_side_by_side_are_each_judged_by_a_check(question: Any) -> None:
    begin_two_checked_forks(question, "echo looked into $PWD; exit 3")

    found = question.get_by_role("status").filter(has_text="check:")
    found.nth(1).wait_for()
    for one in (found.nth(0), found.nth(1)):
        assert "before the question: identical" in one.inner_text()
        assert "check: exit 3\n\nlooked into /workspace" in one.inner_text()
    assert violations(question) == []


def test_calls_of_tools_that_are_no_json_begin_nothing(question: Any) -> None:
    question.get_by_label("calls of tools").fill("[{")
    question.get_by_role("button", name="fork from here…").click()

    question.get_by_role("alert").get_by_text("calls of tools: no JSON").wait_for()
    assert question.get_by_role("alertdialog").count() == 0


@pytest.mark.parametrize("role", ["viewer", "viewer-with-contents", "approver"])
def test_no_other_link_than_the_operators_asks_replays_or_forks(kernel: Kernel, role: Role) -> None:
    with browser_of(kernel, role).open_page() as tab:
        replies = [
            tab.ask({"type": "ask_again", "id": 900, "name": "coder-1", "call": 1, "model": "fast"}),
            tab.call("REPLAY_START", path="coder-1"),
            tab.call("REPLAY_START", path="coder-1", then="live", until=2),
        ]

    assert [reply["code"] for reply in replies] == ["permission_denied"] * 3


def test_a_call_that_is_no_question_isnt_asked(kernel: Kernel) -> None:
    with browser_of(kernel).open_page() as tab:
        entries = tab.ask({"type": "recordings", "id": 900, "name": "coder-1"})["entries"]
        store = next(entry["id"] for entry in entries if entry["call"] == "STORE")
        answer = tab.ask({"type": "ask_again", "id": 901, "name": "coder-1", "call": store, "model": "fast"})

    assert (answer["code"], answer["error"]) == ("bad_request", f"call: {store} is no question, but STORE")
