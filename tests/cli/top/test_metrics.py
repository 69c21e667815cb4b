"""``agentos metrics``: what it prints of the kernel and of agents, in how many columns, and its charts."""

import json
import re

import pytest

from agentos.userland.cli.agents.resources import format_bytes, format_share
from agentos.userland.cli.top.metrics import charts, describe_calls, draw_chart, format_rate, system_facts
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row


def test_without_a_name_it_shows_the_kernel_and_all_agents(kernel: Kernel, agentos: Agentos) -> None:
    kernel.spawn("sleeper")
    kernel.spawn("a-sleeper-with-a-name-as-long-as-any-in-a-narrow-terminal")

    shown = agentos("metrics", "--history", "1m", COLUMNS="80")

    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines), shown.stdout
    labels = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert labels[:7] == ["host", "memory", "disk", "network", "kernel", "model", "history"]
    header = next(number for number, line in enumerate(lines) if line.startswith("NAME"))
    assert lines[header].split() == ["NAME", "STATE", "CPU%", "MEM", "LIMIT", "PIDS", "FDS", "SOURCE"]
    assert any(re.match(r"sleeper +running +[\d.]+ +[\d.]+M", line) for line in lines[header:])
    found = json.loads(agentos("metrics", "--json").stdout)
    assert {agent["name"] for agent in found["agents"]} >= {"sleeper"}
    assert found["system"]["kernel"]["memory_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ([], "0 waiting, "),
        (["normal", "normal"], "2 waiting, "),
        (["batch", "normal", "batch"], "3 waiting (1 normal, 2 batch), "),
    ],
)
def test_the_classes_of_waiting_questions_are_counted(classes: list[str], text: str, kernel: Kernel) -> None:
    with kernel.client() as client:
        found = client.metrics()["metrics"]
    found["llm"]["waiting"] = [{"class": each} for each in classes]

    assert dict(system_facts(found))["model"].startswith(f"0 in flight, {text}")


def test_with_a_name_or_an_id_it_shows_one_agent(kernel: Kernel, agentos: Agentos) -> None:
    number = kernel.spawn("sleeper")

    shown = agentos("metrics", "sleeper", "--history", "5m")

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"name       sleeper (id {number}), running for ")
    assert re.search(
        r"^processes  rss [\d.]+M, pss [\d.]+M, address space [\d.]+M; 1 thread, \d descriptors$", shown.stdout, re.M
    )
    assert re.search(
        r"^calls      none\nmodel      not used\nsource     (?!nothing).+\n(?: .+\n)*history    \d+ samples? in ",
        shown.stdout,
        re.M,
    )
    assert json.loads(agentos("metrics", str(number), "--json").stdout)["name"] == "sleeper"


def test_mistakes_are_named(kernel: Kernel, agentos: Agentos) -> None:
    kernel.spawn("sleeper")

    assert agentos("metrics", "sleper").stderr == "agentos: no agent is called 'sleper', did you mean sleeper?\n"
    refused = agentos("metrics", "sleeper", "--history", "lots", "--json")
    assert (json.loads(refused.stdout)["code"], refused.returncode) == ("bad_request", 1)
    assert json.loads(agentos("metrics", "99999", "--json").stdout)["code"] == "not_found"


@each_row(
    ("at", "values", "chart"),
    [
        ([100.0], [3.0], "█"),
        ([100.0, 105.0], [0.0, 0.0], "▁"),
        ([0.0, 6.0, 12.0, 18.0], [0.0, 1.0, 2.0, 4.0], "▁▃█"),
        ([0.0, 6.0, 12.0, 18.0], [None, None, 4.0, 1.0], "  █"),
        ([0.0, 60.0], [4.0, 4.0], "█        █"),
    ],
)
def test_a_chart_has_a_bar_for_each_stretch_of_time(at: list[float], values: list[float | None], chart: str) -> None:
    assert draw_chart(at, values) == chart


def test_a_chart_has_at_most_40_columns_and_says_its_range() -> None:
    history = {"at": [float(second) for second in range(900)], "cpu": [second / 900 for second in range(900)]}

    found = dict(charts(history, {"cpu": ("cpu", format_rate)}))

    assert found["history"] == "900 samples in 14m59s"
    assert re.fullmatch(r"[▁▂▃▄▅▆▇█]{40} 0\.0% to 99\.9%", found["  cpu"])
    assert dict(charts({"at": [], "cpu": []}, {})) == {"history": "no samples in this time"}


def test_calls_are_counted_with_their_errors() -> None:
    counted = {"RECV": {"ok": 12}, "STORE": {"ok": 2, "conflict": 1}, "NOOP": {"ok": 40}}

    assert describe_calls(counted) == "NOOP 40, RECV 12, STORE 3 (1 conflict)"


def test_what_is_used_and_what_there_is_have_one_unit() -> None:
    assert format_share(1997 << 20, 24064 << 20) == "2.0G of 23.5G"
    assert format_share(73 << 20, 512 << 20) == "73.0M of 512.0M"
    assert format_share(None, 512 << 20) == "- of 512.0M"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1 << 10, "1.0K"),
        (99 << 10, "99.0K"),
        (100 << 10, "0.1M"),
        (9 << 30, "9216.0M"),
        (10 << 30, "10.0G"),
    ],
)
def test_a_size_has_digits_in_its_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text
