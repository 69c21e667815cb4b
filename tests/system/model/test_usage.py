"""USAGE: what agents have used by day, over kernels that end or are killed, and the reset of a budget."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import asdict

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Usage
from tests.conftest import OwnKernel
from tests.llm.vendors import anthropic_wire
from tests.llm.vendors.script import Says, Text
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared, until
from tests.support.servers.vendor import vendor
from tests.support.wire import HELLO, THINK, USAGE
from tests.system.agents import in_state, info, up
from tests.system.lives.test_containers import SLEEPS, child, group, member

PRICED = '[llm]\nprovider = "offline"\n[llm.prices]\noffline = { input = 1000, output = 1000 }\n'
OFFLINE = '[llm]\nprovider = "offline"\n'
TIGHT = 'llm = { budget = [{ calls = 1, per = "31d" }] }'
WORK = "import time\nwhile time.process_time() < 0.5: pass\n"


def used(client: AgentOSClient, name: str | None = None) -> dict[str, dict[str, Any]]:
    """By name, for a test that ends on the day that it began."""
    return {row["name"]: row for row in up(client.usage(name))["usage"]}


def think(kernel: Kernel, client: AgentOSClient, name: str) -> str:
    with kernel.connect_as(info(client, name)["id"]) as wire:
        reply = wire.call(THINK, {"prompt": "how?"})
    return "answered" if reply["success"] else str(reply["code"])


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    tight = [child(name, SLEEPS, TIGHT) for name in ("asks", "shown", "guarded")]
    with shared("".join((OFFLINE, *tight, child("beside")))) as started:
        yield started


def test_it_has_tokens_calls_cost_cpu_time_and_peak_of_each_agent(own_kernel: OwnKernel) -> None:
    budget = 'llm = { budget = [{ tokens = 100000, per = "1d" }] }'
    kernel = own_kernel(PRICED + child("asks") + child("hourly", SLEEPS, budget))
    with kernel.client() as client:
        up(client.spawn("works", command=["python3", "-c", WORK]))
        in_state(client, "works", "exited")
        assert [think(kernel, client, "asks") for _ in range(2)] == ["answered"] * 2

        rows = used(client)
        asks, works = rows["asks"], rows["works"]
        assert (asks["calls"], asks["day"]) == (2, time.strftime("%Y-%m-%d", time.gmtime()))
        assert asks["tokens"] > 0
        assert asks["cost"] == pytest.approx(asks["tokens"] / 1000)
        assert 0.4 <= works["cpu_seconds"] < 60
        assert works["peak_memory_bytes"] > 1 << 20
        assert list(used(client, "works")) == ["works"]

        check_last_hour(kernel, client)


def test_cpu_time_counts_while_an_agent_runs_and_once_only(kernel: Kernel) -> None:
    with kernel.client() as client:
        up(client.spawn("busy", command=["python3", "-c", WORK + "time.sleep(1000)"]))
        until(lambda: used(client).get("busy", {}).get("cpu_seconds", 0) >= 0.4, "its work counts")
        client.kill("busy", grace=0)

        total = used(client)["busy"]["cpu_seconds"]
        assert total == pytest.approx(info(client, "busy")["cpu_seconds"], abs=0.01)
        assert used(client)["busy"]["cpu_seconds"] == total


def test_it_outlives_the_kernel_and_kill_9_loses_only_what_was_not_written(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(OFFLINE + child("asks"))
    with kernel.client() as client:
        think(kernel, client, "asks")
    kernel.stop()
    kernel.start_again()
    with kernel.client() as client:
        assert (used(client)["asks"]["calls"], used(client)["asks"]["cost"]) == (1, None)  # to read is to write
    kernel.kill()
    kernel.start_again()
    with kernel.client() as client:
        assert used(client)["asks"]["calls"] == 1


def test_cached_input_of_a_vendor_is_charged_and_shown(own_kernel: OwnKernel) -> None:
    counted = Usage(1000, 2, 0, cache_read=600, cache_creation=300)
    cost = (100 * 10 + 600 * 1 + 300 * 12.5 + 2 * 50) / 1e6
    asks = child("asks", SLEEPS, 'llm = { budget = [{ money = 1, per = "31d" }] }')
    with vendor(anthropic_wire) as met:
        met.models = {"claude-x": Says([Text("yes")], usage=counted)}
        model = f'[llm]\nprovider = "anthropic"\nmodel = "claude-x"\nbase_url = "{met.base_url}"\n'
        kernel = own_kernel(
            model + "[llm.prices]\nclaude-x = { input = 10, output = 50 }\n" + asks, {"ANTHROPIC_API_KEY": met.key}
        )
        with kernel.client() as client:
            with kernel.connect_as(info(client, "asks")["id"]) as wire:
                reply = wire.call(THINK, {"prompt": "x" * 2000, "system_instruction": "be brief"})
            assert reply["usage"] == asdict(counted)
            assert (reply["tokens"], reply["cost"]) == (1002, pytest.approx(cost))
            shown = client.inspect("asks")["llm"]
            assert shown["budgets"][0]["used"] == pytest.approx(cost)
            assert (shown["spent"]["cache_read"], shown["spent"]["cache_creation"]) == (600, 300)
            figures = up(client.agent_metrics(info(client, "asks")["id"]))["metrics"]["llm"]
            assert (figures["cache_read"], figures["cache_creation"]) == (600, 300)
            row = used(client)["asks"]
            assert (row["tokens"], row["cache_read"], row["cache_creation"]) == (1002, 600, 300)
            assert row["cost"] == pytest.approx(cost)
        assert met.exchanges[0].body["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_a_budget_that_refuses_is_told_once_in_its_window_and_can_be_reset(kernel: Kernel) -> None:
    said = "the budget of asks is used up: 1 of 1 calls per 31d; it refuses questions until"
    with kernel.client() as client:
        assert [think(kernel, client, "asks") for _ in range(3)] == ["answered", "quota_exceeded", "quota_exceeded"]
        kernel.wait_line(said)
        [budget] = client.inspect("asks")["llm"]["budgets"]
        assert budget["refuses"]
        assert info(client, "asks")["budget_renews_at"] == budget["renews_at"]
        assert info(client, "beside")["budget_renews_at"] is None
        assert kernel.said.count(said) == 1

        up(client.usage("asks", reset=True))
        assert info(client, "asks")["budget_renews_at"] is None
        assert think(kernel, client, "asks") == "answered"
        assert think(kernel, client, "asks") == "quota_exceeded"
        until(lambda: kernel.said.count(said) == 2, "it is told again after a reset")


def test_the_budget_of_a_group_and_of_all_agents_is_reset_by_its_owners_name(own_kernel: OwnKernel) -> None:
    file = OFFLINE + 'budget = [{ calls = 2, per = "31d" }]\n' + group("team", member("one"), TIGHT)
    kernel = own_kernel(file)
    with kernel.client() as client:
        assert [think(kernel, client, "one") for _ in range(2)] == ["answered", "quota_exceeded"]
        assert client.usage("nobody", reset=True)["code"] == "not_found"
        assert client.usage("one", reset=True)["code"] == "not_found"
        up(client.usage("group team", reset=True))
        assert [think(kernel, client, "one") for _ in range(2)] == ["answered", "quota_exceeded"]
        up(client.usage("group team", reset=True))
        assert think(kernel, client, "one") == "quota_exceeded"
        up(client.usage("kernel", reset=True))
        assert think(kernel, client, "one") == "answered"


def test_only_the_operator_resets_and_an_agent_reads_no_usage(kernel: Kernel) -> None:
    with (
        kernel.client() as client,
        kernel.connect_as(info(client, "guarded")["id"]) as agent,
        kernel.connect() as guest,
    ):
        assert agent.call(USAGE, {})["code"] == "permission_denied"
        assert guest.call(HELLO, {"as": "ann", "level": "unrestricted"})["success"]
        assert guest.call(USAGE, {})["success"]
        assert guest.call(USAGE, {"name": "guarded", "reset": True})["code"] == "permission_denied"
        assert client.usage(reset=True)["code"] == "bad_request"
        assert client.request(Op.USAGE, {"since": 1e18})["code"] == "bad_request"


def test_the_command_shows_a_table_and_resets(kernel: Kernel) -> None:
    def agentos(*words: str) -> str:
        done = run_agentos([*words, "--socket", kernel.socket], kernel.place, environment(kernel.place))
        assert done.returncode == 0, done.stderr
        return done.stdout

    with kernel.client() as client:
        think(kernel, client, "shown")
        think(kernel, client, "shown")
    header, *rows = agentos("usage", "shown").splitlines()
    assert header.split() == ["DAY", "NAME", "TOKENS", "CACHED", "CALLS", "COST", "USD", "CPU", "PEAK"]
    assert [row.split()[1:2] for row in rows] == [["shown"]]

    def is_used_up() -> bool:
        return any("shown" in line and "budget used up until" in line for line in agentos("ps").splitlines())

    assert is_used_up()
    assert "; used up" in agentos("inspect", "shown")
    assert agentos("budget", "reset", "shown") == "the budgets of shown begin anew\n"
    assert not is_used_up()
    assert agentos("usage", "nothing") == "nothing was used by nothing in these days\n"


def check_last_hour(kernel: Kernel, client: AgentOSClient) -> None:
    """Of that there are models, and what is left of budgets."""
    assert think(kernel, client, "hourly") == "answered"

    reply = up(client.usage(hour=True))
    rows = {(row["name"], row["model"]): row for row in reply["usage"]}
    row = rows["hourly", "offline"]
    assert (row["calls"], row["questions"], row["failed"], row["retried"]) == (1, 1, 0, 0)
    assert row["cost"] == pytest.approx(row["tokens"] / 1000)
    budgets = {(one["name"], one["what"], one["most"], one["used"]) for one in reply["budgets"]}
    asks = rows["asks", "offline"]["tokens"]
    assert {("hourly", "tokens", 100000, row["tokens"]), ("asks", "tokens", 200000, asks)} <= budgets
    assert up(client.usage("nothing", hour=True))["usage"] == []
    assert client.usage(hour=True, by_model=True)["code"] == "bad_request"
    assert client.usage(hour=True, total=True)["code"] == "bad_request"
    totals = {one["name"]: one for one in up(client.usage(by_model=True, total=True))["usage"]}
    total = totals["hourly"]
    assert (total["model"], total["tokens"], total["cost"]) == ("offline", row["tokens"], row["cost"])
    assert up(client.usage())["budgets"] == []
