"""The real ``openai`` package in agents that know nothing of us."""

import os
import signal
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared, until
from tests.system.agents import ASKS_ENDPOINT, in_state, known, lines, up, write, written
from tests.system.jails import need_cgroups, said

TOML = """
[llm]
provider = "offline"
openai_endpoint = true
"""
LEVELS: list[dict[str, Any]] = [{"runtime": "fast"}, {"isolation": "strict"}, {"network": True}, {"isolation": "none"}]
HOSTS_NETWORK = pytest.mark.parametrize("level", [{"network": True}, {"isolation": "none"}], ids=str)
PACKAGE = """
import asyncio, json, openai

asked = dict(model="gpt-5", messages=[{"role": "user", "content": "Hello from inside."}])

async def main():
    async with openai.AsyncOpenAI() as client:
        ask = client.chat.completions.create
        whole = (await ask(**asked)).choices[0].message.content
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in await ask(**asked, stream=True)])
        models = [model.id async for model in client.models.list()]
        many = {answer.id for answer in await asyncio.gather(*(ask(**asked) for _ in range(30)))}
        print(json.dumps([whole, streamed, models, len(many)]), flush=True)

asyncio.run(main())
"""
ECHO = "[offline echo, no model was asked] Hello from inside."
KNOCK = """
import json, os, urllib.error, urllib.request
def knock(url, key="any"):
    request = urllib.request.Request(url + "/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error.reason)
"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(TOML) as started:
        yield started


def code(*texts: str) -> str:
    return "\n".join(map(dedent, texts))


def test_the_package_asks_as_anywhere_else(kernel: Kernel, client: AgentOSClient) -> None:
    assert said(client, kernel, "package", PACKAGE) == [ECHO, ECHO, ["offline"], 30]


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_it_is_there_at_each_level(kernel: Kernel, client: AgentOSClient, level: dict[str, Any]) -> None:
    if level.get("isolation") == "strict":
        need_cgroups(kernel)
    text = "Hello from inside."

    script = f"{ASKS_ENDPOINT}\nprint(json.dumps([whole({text!r}), streamed({text!r})]), flush=True)\n"

    assert said(client, kernel, "asks", script, **level) == [ECHO, ECHO]


def test_no_program_is_quicker_than_its_listener(kernel: Kernel, client: AgentOSClient) -> None:
    knock = "exec 3<>/dev/tcp/127.0.0.1/80 && printf 'GET /v1/models HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3"

    for number in range(10):
        name = f"quick-{number}"
        client.spawn(name, command=["/bin/bash", "-c", knock], restart="temporary")
        until(lambda name=name: lines(client, name), f"{name} says something")  # type: ignore[misc]
        assert lines(client, name) == ["HTTP/1.1 200 "]


def test_in_a_jail_the_listener_is_the_identity_and_any_key_will_do(kernel: Kernel, client: AgentOSClient) -> None:
    script = """
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    print(json.dumps([url, key, knock(url, key), knock(url, "any")]), flush=True)
    """

    assert said(client, kernel, "inside", code(KNOCK, script)) == ["http://127.0.0.1/v1", "agentos", 200, 200]


@HOSTS_NETWORK
def test_on_the_hosts_network_ones_own_key_is_asked_for(
    kernel: Kernel, client: AgentOSClient, level: dict[str, Any]
) -> None:
    tell = 'print(json.dumps([os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]]), flush=True)'
    url, key = said(client, kernel, "first", code(KNOCK, tell), **level)
    other_url, other_key = said(client, kernel, "second", code(KNOCK, tell), **level)
    tries = f"print(json.dumps([knock({url!r}, key) for key in ({key!r}, {other_key!r}, '')]), flush=True)"

    assert (url != other_url, key != other_key) == (True, True)
    assert said(client, kernel, "third", code(KNOCK, tries), **level) == [200, 401, 401]


def test_a_jail_reaches_no_endpoint_but_its_own(kernel: Kernel, client: AgentOSClient) -> None:
    tell = 'print(json.dumps(os.environ["OPENAI_BASE_URL"]), flush=True)'
    url = said(client, kernel, "outside", code(KNOCK, tell), network=True)

    assert "refused" in said(client, kernel, "jailed", code(KNOCK, f"print(json.dumps(knock({url!r})), flush=True)"))


def test_no_rule_lets_the_http_call_reach_it_and_explain_says_so(kernel: Kernel, client: AgentOSClient) -> None:
    tell = 'print(json.dumps(os.environ["OPENAI_BASE_URL"]), flush=True)'
    url = said(client, kernel, "open", code(KNOCK, tell), network=True)
    [authority] = url.split("/")[2:3]
    given = {"level": "sandboxed", "allow": {"domains": [authority]}}
    client.set_permissions(given, agent_id=client.inspect("open")["id"])

    told = client.explain("open", "HTTP", {"url": url})

    assert told["decision"] == "deny"
    assert told["reason"] == f"{authority} is the kernel's own, and refused to all agents"


def test_its_port_is_closed_when_it_has_ended(kernel: Kernel, client: AgentOSClient) -> None:
    tell = 'print(json.dumps(os.environ["OPENAI_BASE_URL"]), flush=True)'
    url = said(client, kernel, "short", code(KNOCK, tell), network=True)
    client.kill(name="short", grace=0)

    again = code(KNOCK, f"print(json.dumps(knock({url!r})), flush=True)")
    assert "refused" in said(client, kernel, "later", again, isolation="none")


def test_each_life_has_one(kernel: Kernel, client: AgentOSClient) -> None:
    script = 'print("answered", knock(os.environ["OPENAI_BASE_URL"]), flush=True)\nimport time; time.sleep(1000)\n'
    up(client.spawn("again", write(kernel, "again.py", code(KNOCK, script)), restart="permanent"))
    written(client, "again", "answered 200")

    os.kill(known(client, "again"), signal.SIGKILL)

    until(lambda: lines(client, "again") == ["answered 200"] * 2, "it is answered in its second life")
    in_state(client, "again", "running")


def test_what_an_agent_is_given_counts_for_more(kernel: Kernel, client: AgentOSClient) -> None:
    tell = 'print(json.dumps(os.environ["OPENAI_BASE_URL"]), flush=True)'
    given = {"OPENAI_BASE_URL": "https://elsewhere.example/v1"}

    assert said(client, kernel, "given", code(KNOCK, tell), env=given) == given["OPENAI_BASE_URL"]


def test_lives_and_their_requests_leave_nothing_open(kernel: Kernel, client: AgentOSClient) -> None:
    script = 'print(json.dumps(knock(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])), flush=True)'

    def one(level: dict[str, Any]) -> None:
        assert said(client, kernel, "one", code(KNOCK, script), **level) == 200
        client.kill(name="one", grace=0)

    for level in ({}, {"network": True}):
        one(level)
    before = kernel.open_files
    for level in ({}, {"network": True}) * 2:
        one(level)
    until(lambda: kernel.open_files <= before, f"its files are closed: {before} before, {kernel.open_files} now")


def test_an_agent_that_doesnt_ask_for_an_endpoint_has_none(client: AgentOSClient, own_kernel: Any) -> None:
    tell = """
    there = [name for name in os.environ if name.startswith("OPENAI")]
    print(json.dumps([there, knock("http://127.0.0.1/v1")]), flush=True)
    """
    without = own_kernel()
    with without.client() as other:
        names, answer = said(other, without, "plain", code(KNOCK, tell))

    assert names == []
    assert "refused" in answer


def test_what_is_asked_here_counts_for_the_agents_own_budget(kernel: Kernel, client: AgentOSClient) -> None:
    script = """
    whole("first")
    try:
        ask("second")
    except urllib.error.HTTPError as error:
        print(json.dumps([json.load(error)["error"]["code"], "Retry-After" in error.headers]), flush=True)
    """
    budget = {"budget": [{"calls": 1, "per": "1d"}]}

    agents: dict[str, dict[str, Any]] = {"jailed": {}, "connected": {"network": True}}
    for name, more in agents.items():
        found = said(client, kernel, name, code(ASKS_ENDPOINT, script), llm=budget, **more)
        assert found == ["insufficient_quota", True]
