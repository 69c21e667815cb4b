"""GET_CONTENTS: the questions and answers of agents, their bounds, and that only the operator gets them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, shared, until
from tests.support.wire import GET_CONTENTS, HELLO, SPAWN, THINK
from tests.system.agents import ASKS_ENDPOINT, as_agent, ask, in_state, info, relay, up
from tests.system.jails import said

KEY = "AQ.Ab8RN6-0123456789abcdef"
TOKEN = "s3cr3t-0123456789abcdef"
OFFLINE = '[llm]\nprovider = "offline"\n'
TOML = f"""
{OFFLINE}
openai_endpoint = true
[llm.prices]
offline = {{ input = 1000, output = 1000 }}

[[http.secrets]]
name = "token"
host = "api.example.com"
header = "Authorization: Bearer"
value_from = "env:TEST_TOKEN"
"""
ENDPOINT = f"""
{ASKS_ENDPOINT}
messages = [{{"role": "system", "content": "be brief"}}, {{"role": "user", "content": "from the endpoint"}}]
print(json.dumps([whole("", messages=messages), streamed("from the endpoint")]), flush=True)
"""
UNRESTRICTED = {"permissions": "unrestricted"}


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(TOML, {"TEST_TOKEN": TOKEN, "GEMINI_API_KEY": KEY}) as started:
        yield started


def spawn(client: AgentOSClient, name: str, **more: Any) -> int:
    return int(up(client.spawn(name, command=["sleep", "1000"], **more))["id"])


def think(kernel: Kernel, number: int, prompt: str, **more: Any) -> dict[str, Any]:
    with kernel.connect_as(number) as wire:
        reply: dict[str, Any] = wire.call(THINK, {"prompt": prompt, **more})
    return reply


def test_questions_by_call_and_by_endpoint_are_kept_with_what_the_audit_log_says(kernel: Kernel) -> None:
    with kernel.client() as client:
        answers = said(client, kernel, "writer", ENDPOINT, isolation="none")
        number = info(client, "writer")["id"]
        reply = up(think(kernel, number, "by a call", system_instruction="be kind"))

        found = up(client.get_contents("writer"))
        until(lambda: client.get_audit_log("model", number)["count"] == 3, "the audit log has them")
        entries = client.get_audit_log("model", number)["entries"]

    first, second, third = found["questions"]
    assert (found["count"], found["more"]) == (3, False)
    assert [each["answer"] for each in found["questions"]] == [*answers, reply["content"]]
    assert (first["system"], third["system"]) == ("be brief", "be kind")
    assert [first["messages"], third["messages"]] == [
        [{"role": "user", "text": text, "images": 0, "tool_calls": []}] for text in ("from the endpoint", "by a call")
    ]
    assert {each["agent_id"] for each in found["questions"]} == {number}
    assert third["usage"] == reply["usage"]
    assert 0 < reply["latency_ms"] <= third["latency_ms"]  # which is measured around it
    assert third["queued_ms"] < third["latency_ms"]
    assert second["first_token_ms"] <= second["latency_ms"]
    for entry, each in zip(entries, found["questions"], strict=True):
        assert f"question sha256:{each['digest']}" in entry["about"]
        assert f"cost {each['cost']:.10g} USD," in entry["about"]


def test_so_many_as_are_kept_outlive_the_agent_and_none_the_kernel(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(f"{OFFLINE}keep_contents = 2\n")
    with kernel.client() as client:
        number = spawn(client, "short")
        for text in "abc":
            think(kernel, number, text)
        client.kill("short")
        in_state(client, "short", "exited")
        assert [each["messages"][0]["text"] for each in client.get_contents("short")["questions"]] == ["b", "c"]
    kernel.stop()
    (kernel.place / "agentos.toml").write_text(f"{OFFLINE}keep_contents = 0\n")
    kernel.start_again()
    with kernel.client() as client:
        assert client.get_contents()["questions"] == []
        think(kernel, spawn(client, "short"), "none is kept")
        assert client.get_contents()["questions"] == []


def test_no_agent_child_or_guest_gets_them_whatever_its_rules(kernel: Kernel) -> None:
    secret = "the plan is 42"
    granted = {"level": "sandboxed", "allow": {"calls": ["GET_CONTENTS"]}}
    with kernel.client() as client:
        own = spawn(client, "own")
        think(kernel, own, secret)
        wide = relay(kernel, client, "wide", **UNRESTRICTED)
        replies = [ask(client, wide, "get_contents")]
        for number in (own, wide, spawn(client, "granted", permissions=granted)):
            with kernel.connect_as(number) as wire:
                replies += [wire.call(GET_CONTENTS, body) for body in ({}, {"name": "own"}, {"agent_id": own})]
        with kernel.connect_as(wide) as parent:
            child = parent.call(SPAWN, {"name": "child", "command": ["sleep", "1000"], **UNRESTRICTED})["id"]
        with kernel.connect_as(child) as wire, kernel.connect() as guest:
            replies.append(wire.call(GET_CONTENTS, {}))
            assert guest.call(HELLO, {"as": "ann", "level": "unrestricted"})["success"]
            replies.append(guest.call(GET_CONTENTS, {}))
            explained = client.explain("wide", "GET_CONTENTS", {})
        until(lambda: client.get_audit_log("audit")["count"] >= len(replies), "refusals are in the audit log")
        entries = client.get_audit_log("audit", limit=1000)["entries"]

        assert len(client.get_contents("own")["questions"]) == 1

    assert {reply["code"] for reply in replies} == {"permission_denied"}
    assert all(reply["questions"] == [] and secret not in json.dumps(reply) for reply in replies)
    assert explained["decision"] == "deny"
    assert {entry["outcome"] for entry in entries if entry["kind"] != "operator"} == {"permission_denied"}


def test_secrets_of_the_kernel_and_what_looks_like_one_are_redacted(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = spawn(client, "leaks")
        think(kernel, number, f"{TOKEN} and {KEY}, password=hunter2hunter2", system_instruction=TOKEN + KEY)
        reply = client.get_contents("leaks")
        [found] = reply["questions"]

    assert found["messages"][0]["text"] == "••• and •••, password=[redacted]"
    assert found["system"] == "••••••"
    assert found["answer"].endswith("••• and •••, password=[redacted]")
    assert not any(text in json.dumps(reply) for text in (TOKEN, KEY, "hunter2"))


async def test_both_clients_have_it(kernel: Kernel) -> None:
    with kernel.client() as client, as_agent(kernel, spawn(client, "twin")) as writer:
        writer.think("how?")
        assert client.request(Op.GET_CONTENTS, {"limit": 0})["code"] == "bad_request"
        expected = client.get_contents("twin")["questions"]

        async with connect(kernel.socket) as trio_client:
            found = await trio_client.get_contents("twin", limit=1)
    assert (found.count, found.questions[0].digest) == (1, expected[0]["digest"])
    assert found.questions[0].messages[0].text == "how?"
