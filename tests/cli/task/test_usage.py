"""``agentos usage``: rows by agent, model and day, as a table, CSV and JSON."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from agentos.userland.cli.model.usage import group_rows
from tests.conftest import OwnKernel
from tests.support.wire import THINK
from tests.system.agents import info


def row(
    name: str, day: str, tokens: int, cost: float | None, peak: int | None = None, model: str | None = None
) -> dict[str, object]:
    return {
        "name": name, "day": day, "tokens": tokens, "calls": 1, "cost": cost, "cpu_seconds": None,
        "peak_memory_bytes": peak, "cache_read": 0, "cache_creation": 0, "model": model,
    }  # fmt: skip


ROWS = [row("a", "2026-11-01", 5, 1.0, 10), row("b", "2026-11-01", 9, 3.0), row("a", "2026-11-02", 7, 1.5, 30)]


def test_rows_of_an_agent_are_added_and_the_largest_cost_comes_first() -> None:
    found = group_rows(ROWS, ["agent"])

    assert [(one["name"], one["tokens"], one["cost"]) for one in found] == [("b", 9, 3.0), ("a", 12, 2.5)]
    assert [one["peak_memory_bytes"] for one in found] == [None, 30]
    assert "day" not in found[0]


def test_a_cost_that_is_not_known_makes_the_sum_unknown() -> None:
    assert [one["cost"] for one in group_rows([*ROWS, row("a", "2026-11-03", 1, None)], ["agent"])] == [3.0, None]
    cheap = row("c", "2026-11-03", 1, 0.01)
    assert [one["cost"] for one in group_rows([row("a", "2026-11-03", 9, None), cheap], ["agent"])] == [0.01, None]


def test_with_days_the_oldest_comes_first() -> None:
    assert [one["day"] for one in group_rows(ROWS[::-1], ["day"])] == ["2026-11-01", "2026-11-02"]


def test_rows_of_models_have_no_cpu_time() -> None:
    [found] = group_rows([row("a", "2026-11-01", 5, 1.0, model="x")], ["model", "agent"])

    assert (found["model"], found["name"]) == ("x", "a")
    assert "cpu_seconds" not in found


def test_the_forms_have_the_same_rows(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        '[llm]\nprovider = "offline"\nmodel = "parrot"\n[[agents]]\nname = "asks"\ncommand = ["sleep", "1000"]\n'
    )

    def say(*more: str) -> str:
        done = CliRunner().invoke(cli, ["usage", "--by", "model,agent", "--socket", kernel.socket, *more])
        assert done.exit_code == 0, done.output
        return done.output

    before = say("--csv")
    with kernel.client() as client, kernel.connect_as(info(client, "asks")["id"]) as wire:
        assert wire.call(THINK, {"prompt": "hello"})["success"]

    [found] = json.loads(say("--json"))
    [written] = csv.DictReader(io.StringIO(say("--csv")))
    head, line = say().splitlines()
    assert (found["model"], found["name"], found["calls"]) == ("parrot", "asks", 1)
    assert {name: "" if value is None else str(value) for name, value in found.items()} == written
    assert before == say("--csv").splitlines(keepends=True)[0]
    assert head.split()[:3] == ["MODEL", "NAME", "TOKENS"]
    assert line.split()[:3] == ["parrot", "asks", str(found["tokens"])]


@pytest.mark.parametrize("arguments", [("--by", "agent,colour"), ("--csv", "--json")])
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(cli, ["usage", *arguments]).exit_code == 2
