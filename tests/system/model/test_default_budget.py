"""The budget of an agent of level sandboxed for which the file says none, and how it can't be got rid of."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, shared
from tests.support.wire import HELLO, SET_PERMS, SPAWN, THINK
from tests.system.agents import info, up
from tests.system.lives.test_containers import SLEEPS, child, group, member

OFFLINE = '[llm]\nprovider = "offline"\n'
SMALL = OFFLINE + 'default_budget = [{ tokens = 40, per = "31d" }]\n'
NONE = OFFLINE + 'default_budget = "none"\n'
SLEEP = ["sleep", "1000"]


def budgets(client: AgentOSClient, name: str) -> list[tuple[Any, ...]]:
    found = up(client.inspect(name))["llm"]["budgets"]
    return [(one["name"], one["most"], one["per"], one["by_default"]) for one in found]


OWN = 'llm = { budget = [{ tokens = 9, per = "1h" }] }'
FLEET = (
    *(child("plain"), child("own", SLEEPS, OWN), child("wide", SLEEPS, 'permissions = "standard"')),
    *(child("bare", SLEEPS, 'isolation = "none"'), group("team", member("one"), OWN), child("sly"), child("boss")),
)


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(OFFLINE + "".join(FLEET)) as started:
        yield started


def test_an_untrusted_agent_gets_it_and_one_with_a_budget_or_a_wider_level_does_not(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert budgets(client, "plain") == [("plain", 200_000, 86400, True)]
        assert budgets(client, "own") == [("own", 9, 3600, False)]
        assert budgets(client, "wide") == budgets(client, "bare") == []
        assert budgets(client, "one") == [("group team", 9, 3600, False)]
    kernel.wait_line("each agent of level sandboxed without a budget has 200,000 tokens per 1d")


def test_it_limits_an_agent_with_all_that_it_spawns_and_a_guest(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(SMALL + child("boss"))
    with kernel.client() as client, kernel.connect_as(info(client, "boss")["id"]) as boss:
        assert boss.call(SPAWN, {"name": "hand", "command": SLEEP})["success"]
        assert budgets(client, "hand") == [("boss", 40, 31 * 86400, False)]

        assert boss.call(THINK, {"prompt": "x", "max_tokens": 1})["success"]
        with kernel.connect_as(info(client, "hand")["id"]) as hand:
            assert hand.call(THINK, {"prompt": "x" * 200})["code"] == "quota_exceeded"

    with kernel.connect() as guest:
        assert guest.call(HELLO, {"as": "ann", "level": "sandboxed"})["success"]
        assert guest.call(THINK, {"prompt": "x" * 400})["code"] == "quota_exceeded"
        narrower = {"level": "sandboxed", "quotas": [{"tokens": 10**9, "per": "1h"}]}
        assert guest.call(SET_PERMS, {"permissions": narrower})["success"]
        assert guest.call(THINK, {"prompt": "x" * 400})["code"] == "quota_exceeded"


def test_none_takes_it_away(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(NONE + child("plain"))
    with kernel.client() as client:
        assert budgets(client, "plain") == []
    assert "without a budget" not in kernel.said


def test_an_agent_keeps_it_when_it_narrows_itself_to_a_larger_quota(kernel: Kernel) -> None:
    quotas = [{"tokens": 10**9, "per": "1d"}, {"tokens": 10**9, "per": "1h"}]
    with kernel.client() as client, kernel.connect_as(info(client, "sly")["id"]) as sly:
        assert sly.call(SET_PERMS, {"permissions": {"level": "sandboxed", "quotas": quotas}})["success"]

        assert ("sly", 200_000, 86400) in [budget[:3] for budget in budgets(client, "sly")]


def test_a_wider_level_takes_it_from_an_agent_and_a_narrower_one_gives_it_back(kernel: Kernel) -> None:
    with kernel.client() as client, kernel.connect_as(info(client, "boss")["id"]) as boss:
        assert boss.call(SPAWN, {"name": "hand", "command": SLEEP})["success"]
        up(client.set_permissions("standard", agent_id=info(client, "boss")["id"]))
        assert budgets(client, "boss") == []
        assert budgets(client, "hand") == [("boss/hand", 200_000, 86400, True)]

        up(client.set_permissions("sandboxed", agent_id=info(client, "boss")["id"]))
        assert budgets(client, "boss") == [("boss", 200_000, 86400, True)]
        assert budgets(client, "hand") == [("boss", 200_000, 86400, False)]
