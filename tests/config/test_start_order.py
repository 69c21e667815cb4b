"""``after`` and ``required``: names that exist, no cycle, and only where they mean something."""

from pathlib import Path

import pytest

from tests.config.saying import loaded, said
from tests.system.lives.test_containers import IN_ORDER, child, group, member

SLEEPS = '["sleep", "1000"]'


@pytest.fixture(autouse=True)
def in_a_directory(home: Path) -> None:
    """Files are written into the working directory."""


def after(*names: str) -> str:
    return f"after = {list(names)}".replace("'", '"')


def test_agents_and_groups_may_begin_after_others_of_any_place() -> None:
    team = group("team", member("a") + member("b"), IN_ORDER, after("late"))
    loose = group("loose", member("c", SLEEPS, after("a", "db")))
    config = loaded(child("web", SLEEPS, after("db", "team")) + team + loose + child("late") + child("db"))

    assert config.root.children[0].after == ("db", "team")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (child("a", SLEEPS, after("b")), "children[0].after[0]: no agent or supervisor of this file is called 'b'"),
        (child("a", SLEEPS, after("a")), "children[0].after[0]: 'a' itself can't begin before 'a' is up"),
        (
            group("team", member("a") + member("b", SLEEPS, after("c")), IN_ORDER) + child("c"),
            "children[0].children[1].after: members of a rest_for_one supervisor start in the order of the file",
        ),
        (
            group("team", member("a", SLEEPS, after("team"))),
            "children[0].children[0].after[0]: 'team' itself can't begin before 'a' is up",
        ),
        (
            child("a", SLEEPS, 'start_timeout = "9s"'),
            "children[0].start_timeout: only an agent with required = true has one",
        ),
    ],
)
def test_an_order_that_cannot_be(text: str, mistake: str) -> None:
    [line] = said(text)

    assert f"supervisor.{mistake}" in line


def test_each_part_of_a_cycle_is_named() -> None:
    text = child("a", SLEEPS, after("b")) + child("b", SLEEPS, after("team")) + group("team", member("c"), after("a"))

    assert [line.partition("supervisor.")[2] for line in said(text)] == [
        f"children[{index}].after[0]: {other!r} itself can't begin before {name!r} is up: leave one of them out"
        for index, name, other in ((0, "a", "b"), (1, "b", "team"), (2, "team", "a"))
    ]


def test_a_cycle_through_the_order_of_a_group_is_found() -> None:
    team = group("team", member("a") + member("b"), IN_ORDER, after("web"))
    inner = group("inner", member("early", SLEEPS, after("late")))

    assert [
        line.partition("supervisor.")[2].partition(":")[0] for line in said(child("web", SLEEPS, after("b")) + team)
    ] == [
        "children[0].after[0]",
        "children[1].after[0]",
    ]
    assert loaded(f"[supervisor]\n{IN_ORDER}\n" + inner + child("late"))  # a one_for_one group is up at once
