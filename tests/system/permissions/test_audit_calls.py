"""GET_AUDIT_LOG and SET_AUDIT_CONFIG, by both clients of the SDK."""

from collections.abc import Iterator
from typing import get_args

import attrs
import pytest

from agentos.services.audit.categories import CATEGORIES, category_of
from agentos.services.audit.log import SWITCHABLE
from agentos_sdk import AgentOSClient, connect
from agentos_sdk.calls.operator.audit import Category, SetAuditConfig
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.system.agents import up


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as connected:
        yield connected


def acts(client: AgentOSClient, count: int) -> None:
    for number in range(count):
        up(client.exec(["true", str(number)]))


def test_the_newest_entries_come_oldest_first(client: AgentOSClient) -> None:
    acts(client, 3)

    page = client.get_audit_log(limit=4)

    ids = [entry["id"] for entry in page["entries"]]
    assert page["count"] == 4
    assert ids == list(range(ids[0], ids[0] + 4))
    everything = client.get_audit_log(limit=1000)["entries"]
    assert [entry["id"] for entry in everything][:3] == [1, 2, 3]


def test_a_reader_goes_on_after_what_it_has_seen(client: AgentOSClient) -> None:
    acts(client, 5)
    seen: list[int] = []
    last = client.get_audit_log(limit=1)["entries"][0]["id"]

    while (after := seen[-1] if seen else 0) < last:
        seen += [entry["id"] for entry in client.get_audit_log(since_id=after, limit=3)["entries"]]

    assert seen == list(range(1, len(seen) + 1))


def test_entries_are_chosen_by_category_and_by_caller(client: AgentOSClient) -> None:
    acts(client, 2)
    me = client.hello()["agent_id"]

    until(lambda: client.get_audit_log("commands", me)["count"] == 4, "both outcomes are written")

    mine = client.get_audit_log("commands", me)["entries"]
    assert {(entry["call"], entry["category"], entry["kind"]) for entry in mine} == {("EXEC", "commands", "operator")}
    assert [entry["phase"] for entry in mine].count("intent") == 2
    assert {entry["intent"] for entry in mine if entry["phase"] == "outcome"} == {
        entry["id"] for entry in mine if entry["phase"] == "intent"
    }
    assert client.get_audit_log("network")["entries"] == []


def test_an_entry_is_whole(client: AgentOSClient) -> None:
    [entry] = client.get_audit_log("kernel", limit=1)["entries"]

    assert entry["call"] == "KERNEL_START"
    assert entry["about"].startswith("agentos ")
    assert {type(value) for value in entry.values()} <= {int, float, str, type(None)}
    assert len(entry["hash"]) == 64


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 1001}, {"since_id": -1}, {"category": "kernels"}, {"agent_id": "7"}]
)
def test_what_makes_no_sense_is_a_bad_request(client: AgentOSClient, wrong: dict[str, object]) -> None:
    reply = client.request(Op.GET_AUDIT_LOG, wrong)

    assert reply["code"] == "bad_request"
    assert next(iter(wrong)) in reply["error"]
    assert (reply["entries"], reply["count"]) == ([], 0)


async def test_the_trio_client_has_them_typed(kernel: Kernel) -> None:
    async with connect(kernel.socket) as client:
        config = await client.set_audit_config(log_model=False)
        assert config == {f"log_{category}": category != "model" for category in SWITCHABLE}
        assert await client.set_audit_config(log_model=True) == dict.fromkeys(config, True)

        entries = [entry for entry in await client.get_audit_log("audit") if entry.call == "SET_AUDIT_CONFIG"]
        assert [entry.about for entry in entries if entry.phase == "intent"] == ["log_model off", "log_model on"]

        with pytest.raises(BadRequest, match="limit: expected a whole number from 1 to 1000"):
            await client.get_audit_log(limit=5000)


def test_the_sdk_knows_the_kernels_categories() -> None:
    assert set(get_args(Category)) == set(CATEGORIES)
    assert {field.name for field in attrs.fields(SetAuditConfig)} == {f"log_{category}" for category in SWITCHABLE}


def test_every_call_belongs_to_one_category_at_most() -> None:
    calls = [call for calls in CATEGORIES.values() for call in calls]

    assert len(calls) == len(set(calls))
    assert {op.name for op in Op if category_of(op.name) == "other"} & {
        "READ",
        "WRITE",
        "EXEC",
        "SPAWN",
        "THINK",
    } == set()
