"""What of a conversation is left out when it no longer fits, and a task's budget."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.loop.engine.budget import Budget, Spent
from agentos_sdk.loop.engine.history import History, estimate_tokens
from tests.support.runs.rows import each_row

TASK = {"role": "user", "content": "the task " * 50}


def history(*sizes: int) -> History:
    """A conversation with a call in each step, whose results have these sizes."""
    made = History()
    made.add(TASK)
    for number, size in enumerate(sizes):
        call = {"id": f"c{number}", "name": "exec", "arguments": {}}
        made.add({"role": "assistant", "content": "", "tool_calls": [call]})
        made.add({"role": "tool", "tool_call_id": f"c{number}", "content": "x" * size})
    return made


def test_old_results_are_cut_first_and_the_last_ones_are_kept() -> None:
    talk = history(9000, 9000, 9000, 9000)
    assert talk.is_full(10_000)

    talk.cut_results(10_000)

    sizes = [len(message["content"]) for message in talk.shown() if message["role"] == "tool"]
    assert [size > 1000 for size in sizes] == [False, False, True, True]
    assert not talk.is_full(10_000)


def test_a_summary_replaces_old_messages_but_never_the_task() -> None:
    talk = history(10, 10, 10, 10)

    assert talk.to_summarise(1000).count("calls exec") == 2
    talk.summarise("two commands were run")

    shown = talk.shown()
    assert shown[0] == TASK
    assert "two commands were run" in shown[1]["content"]
    assert len(shown) == 2 + 4


@given(st.lists(st.integers(0, 5000), max_size=12), st.integers(1000, 20_000))
def test_each_result_that_is_shown_follows_its_call_and_the_task_comes_first(sizes: list[int], context: int) -> None:
    talk = history(*sizes)
    for _ in range(2):
        talk.cut_results(context)
        if talk.to_summarise(context):
            talk.summarise("short")

    shown = talk.shown()
    called = {call["id"] for message in shown for call in message.get("tool_calls", ())}
    answered = {message["tool_call_id"] for message in shown if message["role"] == "tool"}
    assert shown[0] == TASK
    assert called == answered


def test_the_providers_count_is_used_where_there_is_one() -> None:
    talk = history(100)
    guessed = talk.estimate()

    talk.count({"input": 5000, "output": 10, "thinking": 0})
    talk.add({"role": "assistant", "content": "a"})
    talk.add({"role": "user", "content": "b" * 350})

    assert guessed < 300
    assert talk.estimate() == 5010 + estimate_tokens(talk.messages[-1:])


@each_row(
    ("given", "why"),
    [
        ({"tokes": 1}, "budget: expected iterations, tokens, money, time, got 'tokes'"),
        ({"tokens": 0}, "budget.tokens: expected a whole number above 0, got 0"),
        ({"iterations": 1.5}, "budget.iterations: expected a whole number above 0, got 1.5"),
        ({"time": "soon"}, "budget.time: expected a duration such as 5s, got 'soon'"),
        ({"money": True}, "budget.money: expected a number above 0, got True"),
    ],
)
def test_a_wrong_budget_is_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match="budget") as raised:
        Budget.of(given)

    assert str(raised.value) == why


def test_what_was_asked_twice_is_counted_twice() -> None:
    spent = Spent(Budget.of({"time": "10m", "money": 1}), 0.0)

    spent.add({"tokens": 10, "cost": 0.25}, times=2)

    assert (spent.tokens, spent.cost) == (20, 0.5)
    assert spent.budget == Budget(20, None, 1, 600.0)
    assert spent.exceeded() == "600 s have passed, which is budget.time"


@each_row(
    ("given", "used", "why"),
    [
        ({"tokens": 20}, {"tokens": 20}, "20 tokens are used, and budget.tokens is 20"),
        ({"money": 0.5}, {"tokens": 1, "cost": 0.5}, "0.5 is spent, and budget.money is 0.5"),
        ({"money": 0.5}, {"tokens": 1}, "budget.money: the model has no price"),
        ({"tokens": 20, "money": 0.5}, {"tokens": 19, "cost": 0.4}, None),
    ],
)
def test_a_budget_that_is_used_up_to_the_last_token_allows_no_further_step(
    given: dict[str, Any], used: dict[str, Any], why: str | None
) -> None:
    spent = Spent(Budget.of(given), time.time())

    spent.add(used)

    found = spent.exceeded()
    assert found is None if why is None else (found or "").startswith(why)


def test_only_the_last_images_are_shown_and_none_counts_its_bytes() -> None:
    talk = history()
    for number in range(7):
        image = {"type": "image", "data": "A" * 1_000_000, "mime_type": "image/png"}
        talk.add({"role": "user", "content": [{"type": "text", "text": f"image {number}"}, image]})

    shown = [message["content"][1]["type"] for message in talk.shown()[1:]]
    assert shown == ["text"] * 4 + ["image"] * 3
    assert 3 * 1500 < estimate_tokens(talk.shown()) < 4 * 1500
    assert not talk.is_full(15_000)

    talk.shows_images = False
    assert not talk.has_images()
