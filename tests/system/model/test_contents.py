"""GET_CONTENTS: the questions and answers of agents, their bounds, and that only the operator gets them."""

import json
from typing import Any

import pytest

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import GET_CONTENTS, HELLO, SPAWN, THINK
from tests.system.agents import as_agent, ask, in_state, info, relay, up
from tests.system.jails import said

KEY = "AQ.Ab8RN6-0123456789abcdef"
TOKEN = "s3cr3t-0123456789abcdef"
TOML = """
[llm]
provider = "offline"
"""
ENDPOINT = """
import json, openai
client = openai.OpenAI()
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "from the endpoint"}]
whole = client.chat.completions.create(model="offline", messages=messages)
stream = client.chat.completions.create(model="offline", messages=messages[1:], stream=True)
print(json.dumps([whole.choices[0].message.content, "".join(part.choices[0].delta.content or "" for part in stream)]))
import sys; sys.stdout.flush()
"""
UNRESTRICTED = {"permissions": "unrestricted"}


def spawn(client: AgentOSClient, name: str, **more: Any) -> int:
    return int(up(client.spawn(name, command=["sleep", "1000"], **more))["id"])


def think(kernel: Kernel, number: int, prompt: str, **more: Any) -> dict[str, Any]:
    with kernel.connect_as(number) as wire:
        reply: dict[str, Any] = wire.call(THINK, {"prompt": prompt, **more})
    return reply


def test_questions_by_call_and_by_endpoint_are_kept_with_what_the_audit_log_says(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(TOML + "openai_endpoint = true\n[llm.prices]\noffline = { input = 1000, output = 1000 }\n")
    with kernel.client() as client:
        answers = said(client, kernel, "writer", ENDPOINT, isolation="none")
        number = info(client, "writer")["id"]
        reply = up(think(kernel, number, "by a call", system_instruction="be kind"))

        found = up(client.get_contents("writer"))
        until(lambda: client.get_audit_log("model")["count"] == 3, "the audit log has them")
        entries = client.get_audit_log("model")["entries"]

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


def test_they_outlive_the_agent_and_not_the_kernel(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(TOML)
    with kernel.client() as client:
        think(kernel, spawn(client, "short"), "what now?")
        client.kill("short")
        in_state(client, "short", "exited")
        assert [each["messages"][0]["text"] for each in client.get_contents("short")["questions"]] == ["what now?"]
    kernel.stop()
    kernel.start_again()
    with kernel.client() as client:
        assert client.get_contents()["questions"] == []


def test_zero_keeps_none_and_another_number_that_many(own_kernel: OwnKernel) -> None:
    for most in (0, 2):
        kernel = own_kernel(f"{TOML}keep_contents = {most}\n")
        with kernel.client() as client:
            number = spawn(client, "writer")
            for text in "abc":
                think(kernel, number, text)
            found = client.get_contents(agent_id=number)["questions"]
        assert [each["messages"][0]["text"] for each in found] == ["a", "b", "c"][3 - most :]


def test_no_agent_child_or_guest_gets_them_whatever_its_rules(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(TOML)
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

        assert len(client.get_contents()["questions"]) == 1

    assert {reply["code"] for reply in replies} == {"permission_denied"}
    assert all(reply["questions"] == [] and secret not in json.dumps(reply) for reply in replies)
    assert explained["decision"] == "deny"
    assert {entry["outcome"] for entry in entries if entry["kind"] != "operator"} == {"permission_denied"}


def test_secrets_of_the_kernel_and_what_looks_like_one_are_redacted(own_kernel: OwnKernel) -> None:
    secret = (
        '[[http.secrets]]\nname = "token"\nhost = "api.example.com"\nheader = "Authorization: Bearer"\n'
        'value_from = "env:TEST_TOKEN"\n'
    )
    kernel = own_kernel(TOML + secret, env={"TEST_TOKEN": TOKEN, "GEMINI_API_KEY": KEY})
    with kernel.client() as client:
        number = spawn(client, "leaks")
        think(kernel, number, f"{TOKEN} and {KEY}, password=hunter2hunter2", system_instruction=TOKEN + KEY)
        reply = client.get_contents()
        [found] = reply["questions"]

    assert found["messages"][0]["text"] == "••• and •••, password=[redacted]"
    assert found["system"] == "••••••"
    assert found["answer"].endswith("••• and •••, password=[redacted]")
    assert not any(text in json.dumps(reply) for text in (TOKEN, KEY, "hunter2"))


@pytest.mark.parametrize("unit", ["\0", "\U0001f600"])
def test_hostile_prompts_stay_below_four_mebibytes_and_come_in_pages(own_kernel: OwnKernel, unit: str) -> None:
    kernel = own_kernel(TOML + 'default_budget = "none"\n')
    with kernel.client() as client:
        number = spawn(client, "loud")
        for _ in range(3):  # what the allocator keeps anyway
            up(think(kernel, number, unit * 250_000))
        before = kernel.rss
        for index in range(20):
            up(think(kernel, number, unit * 250_000 + str(index)))

        page = up(client.get_contents(since_id=0))
        found = list(page["questions"])
        while page["more"]:
            assert len(json.dumps(page, ensure_ascii=False).encode()) < 1 << 20
            page = up(client.get_contents(since_id=found[-1]["id"]))
            found += page["questions"]

    ids = [each["id"] for each in found]
    assert ids == list(range(ids[0], 24))
    assert 3 << 19 < sum(len(json.dumps(each, ensure_ascii=False).encode()) for each in found) <= 4 << 20
    assert kernel.rss - before < 40 << 20


async def test_both_clients_have_it(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(TOML)
    with kernel.client() as client, as_agent(kernel, spawn(client, "writer")) as writer:
        writer.think("how?")
        assert client.request(Op.GET_CONTENTS, {"limit": 0})["code"] == "bad_request"
        expected = client.get_contents()["questions"]

        async with connect(kernel.socket) as trio_client:
            found = await trio_client.get_contents("writer", limit=1)
    assert (found.count, found.questions[0].digest) == (1, expected[0]["digest"])
    assert found.questions[0].messages[0].text == "how?"
