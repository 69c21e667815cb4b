"""THINK through a whole kernel: who may wait for the model how long, and what is left when somebody goes."""

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, running, until
from tests.support.runs.rows import each_row
from tests.system.agents import RELAY_INSIDE, TALKS, ask, info, lines, relay, up, written

OFFLINE = """
[llm]
provider = "offline"
"""
MODULE = f"""
{OFFLINE}
context = {{ "other-model" = 9000 }}
[llm.prices]
priced = {{ input = 1000000, output = 2000000 }}

[[supervisor.children]]
name = "team"
type = "supervisor"
llm = {{ budget = [{{ calls = 1, per = "1d" }}] }}
[[supervisor.children.children]]
name = "one"
command = ["sleep", "1000"]
"""
SLOW = """
[llm]
provider = "offline"
per_agent = 2
[llm.offline]
base = "1000s"
"""
ASKS = """
from agentos_sdk import AgentOSClient
with AgentOSClient() as kernel:
    print("asks", flush=True)
    print(kernel.think("for ever?"), flush=True)
"""


LOOK_AROUND = """
import glob, os
print(os.environ, flush=True)
for place in glob.glob("/proc/*/environ"):
    try:
        print(open(place, "rb").read(), flush=True)
    except OSError as error:
        print(error, flush=True)
print("looked around", flush=True)
"""


@pytest.fixture(scope="module")
def offline(kernels: None) -> Iterator[Kernel]:
    with running(MODULE) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def slow(kernels: None) -> Iterator[Kernel]:
    with running(SLOW) as kernel:
        yield kernel


def metrics(client: AgentOSClient) -> dict[str, Any]:
    found: dict[str, Any] = client.metrics()["metrics"]["llm"]
    return found


def waits(client: AgentOSClient, count: int) -> bool:
    found = metrics(client)
    return (len(found["in_flight"]), len(found["waiting"])) == (1, count)


def asking(client: AgentOSClient, kernel: Kernel, name: str) -> None:
    """Start an agent that asks the model and waits."""
    script = kernel.place / "asks.py"
    script.write_text(ASKS)
    up(client.spawn(name, str(script)))
    written(client, name, "asks")


def test_an_answer_says_how_many_tokens_fit_into_its_models_context(offline: Kernel) -> None:
    with offline.client() as client:
        assert client.think("hello")["context"] == 128_000
        assert client.think("hello", model="other-model-20260101")["context"] == 9000


def test_bare_text_is_a_prompt(offline: Kernel) -> None:
    with offline.connect() as wire:
        reply = wire.call(Op.THINK, b"what is 2+2?")

    assert reply["success"] is True
    assert reply["error"] is None
    assert reply["content"].endswith("what is 2+2?")
    assert reply["tokens"] == sum(reply["usage"].values()) > 0


@each_row(
    ("body", "error"),
    [
        (b"", "prompt"),
        (b"\xff\xfe", "prompt: expected text in UTF-8"),
        (b'{"prompt": 3}', "prompt"),
        (b'{"prompt": "a", "temperature": 9}', "temperature"),
        (b'{"prompt": "a", "image": {"data": "no base64"}}', "image.data"),
        (b'{"prompt": "a", "timeout": "0s", "budget": 3}', "budget"),
        (b'{"prompt": ', "not JSON"),
        (b'{"prompt": "a", "stream": true}', "stream: needs protocol version 2"),
        (
            b'{"prompt": "a", "tools": [' + b'{"name": "a", "parameters": {"a": [' + b"1," * 600_000 + b"1]}}]}",
            "256 KiB",
        ),
        (b'{"prompt": ' + b"[" * 1000 + b"]" * 1000 + b"}", "nested deeper"),
    ],
)
def test_what_is_no_question_is_told_where(offline: Kernel, body: bytes, error: str) -> None:
    with offline.connect() as wire:
        reply = wire.call(Op.THINK, body)

    assert (reply["success"], reply["code"], reply["content"], reply["tokens"]) == (False, "bad_request", "", 0)
    assert error in reply["error"]


def test_without_a_key_it_is_said_which_variables_to_set(kernel: Kernel, client: AgentOSClient) -> None:
    reply = client.think("anybody there?")

    assert (reply["success"], reply["code"]) == (False, "unavailable")
    assert "GEMINI_API_KEY, GOOGLE_API_KEY, OPENAI_API_KEY or ANTHROPIC_API_KEY" in reply["error"]


def test_the_key_is_in_no_error_no_log_and_no_agent(own_kernel: OwnKernel) -> None:
    key = "canary-4711-of-the-operator"
    kernel = own_kernel(
        '[llm]\nprovider = "gemini"\nbase_url = "http://127.0.0.1:9"\nretry = { attempts = 1 }\n',
        {"GEMINI_API_KEY": key},
    )

    with kernel.client() as client:
        reply = client.think("anybody there?")
        seen = relay(kernel, client, "a")
        ask(client, seen, "run", code=LOOK_AROUND)
        until(lambda: lines(client, "a")[-1:] == ["looked around"], "all of it is read")
        told = str(up(client.logs("a", tail=2000))) + str(client.inspect("a"))

    assert reply["code"] == "unavailable"
    assert "AGENTOS_AGENT_NAME" in told
    assert key not in str(reply) + told + kernel.said


def test_an_agent_that_is_killed_while_it_asks_frees_the_model_at_once(slow: Kernel) -> None:
    with slow.client() as client:
        asking(client, slow, "first")
        until(lambda: len(metrics(client)["in_flight"]) == 1, "first is being answered")
        asking(client, slow, "second")
        until(lambda: info(client, "second")["llm"]["position"] == 1, "second waits")

        client.kill("first", grace=0)

        until(lambda: info(client, "second")["llm"]["in_flight"] == 1, "second is being answered")
        client.kill("second", grace=0)
        until(lambda: metrics(client)["in_flight"] == metrics(client)["waiting"] == [], "nobody is")


def test_a_caller_that_hangs_up_leaves_the_line_at_once(slow: Kernel) -> None:
    with slow.client() as client:
        with slow.connect() as wire:
            wire.send(Op.THINK, b"for ever?")
            until(lambda: len(metrics(client)["in_flight"]) == 1, "it is being answered")

        until(lambda: metrics(client)["in_flight"] == [], "nobody is")


def test_a_question_s_own_deadline_is_kept(slow: Kernel) -> None:
    with slow.client() as client:
        reply = client.think("for ever?", timeout=0.2)

    assert (reply["success"], reply["code"]) == (False, "timeout")


def test_only_so_many_questions_of_one_agent_may_wait(slow: Kernel) -> None:
    with slow.client() as client, contextlib.ExitStack() as stack:
        until(lambda: metrics(client)["in_flight"] == metrics(client)["waiting"] == [], "no other test asks")
        agent = slow.spawn("crowd")
        wires = [stack.enter_context(slow.connect_as(agent)) for _ in range(4)]
        for waiting, wire in enumerate(wires[:3]):
            wire.send(Op.THINK, b"why?")
            until(partial(waits, client, waiting), f"{waiting} wait")

        refused = wires[3].call(Op.THINK, b"why?")

        assert (refused["code"], refused["content"]) == ("busy", "")


def test_a_budget_outlives_the_kernel_and_a_damaged_database_stops_it(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(OFFLINE)
    budget = {"budget": [{"calls": 3, "per": "1d"}]}
    with kernel.client() as client:
        first = relay(kernel, client, "spender", llm=budget)
        assert ask(client, first, "think", prompt="one")["success"]
        client.kill("spender", grace=0)
        second = relay(kernel, client, "spender", llm=budget)
        assert ask(client, second, "think", prompt="two")["success"]
    kernel.kill()
    kernel.start_again()

    with kernel.client() as client:
        third = relay(kernel, client, "spender", llm=budget)
        assert ask(client, third, "think", prompt="three")["success"]
        refused = ask(client, third, "think", prompt="four")

        [left] = up(client.inspect("spender"))["llm"]["budgets"]
        assert (refused["success"], refused["code"], refused["content"]) == (False, "quota_exceeded", "")
        assert "calls" in refused["error"]
        assert "spender" in refused["error"]
        assert "renews in" in refused["error"]
        assert (left["what"], left["most"]) == ("calls", 3)
        assert left["used"] + left["reserved"] == 3  # it may have been killed before it wrote down what was used

    kernel.process.terminate()
    kernel.wait_end()
    (kernel.state_dir / "agentos.db").write_bytes(b"this is no database at all" * 100)

    with pytest.raises(AssertionError, match=r"agentos\.db: .*move it away"):
        kernel.start_again()
    kernel.wait_end()


def test_what_an_agent_spawns_is_paid_from_its_budget(offline: Kernel) -> None:
    with offline.client() as client:
        parent = relay(offline, client, "parent", llm={"budget": [{"calls": 1, "per": "1d"}]}, permissions=TALKS)
        child = ask(client, parent, "spawn", name="child", script=RELAY_INSIDE, permissions=TALKS, ready="hello")["id"]
        generous = {"budget": [{"calls": 1000, "per": "1d"}], "weight": 100}
        other = ask(
            client,
            parent,
            "spawn",
            name="other",
            script="/agent/relay.py",
            ready="hello",
            permissions=TALKS,
            llm=generous,
        )["id"]

        assert ask(client, parent, "think", prompt="mine")["success"]
        refused = [ask(client, each, "think", prompt="mine, too") for each in (child, other)]

        assert [reply["code"] for reply in refused] == ["quota_exceeded"] * 2
        assert "'parent'" in refused[0]["error"]


def test_no_class_is_above_that_of_the_parent_or_the_agent(offline: Kernel) -> None:
    with offline.client() as client:
        parent = relay(offline, client, "later", llm={"class": "batch"}, permissions=TALKS)
        child = {"script": RELAY_INSIDE, "permissions": TALKS, "ready": "hello"}

        above = ask(client, parent, "spawn", name="above", llm={"class": "normal"}, **child)
        same = ask(client, parent, "spawn", name="same", **child)
        asked = [ask(client, same["id"], "think", prompt="?", class_=class_) for class_ in ("normal", "batch")]

        assert (above["code"], above["error"]) == (
            "permission_denied",
            "llm.class: normal is above your own class, which is batch",
        )
        assert client.inspect("same")["llm"]["class"] == "batch"
        assert (asked[0]["code"], asked[0]["error"]) == (
            "permission_denied",
            "class: normal is above your own class, which is batch",
        )
        assert asked[1]["success"]


def test_a_declared_agent_has_the_budget_that_its_group_has(offline: Kernel) -> None:
    with offline.client() as client:
        number = info(client, "one")["id"]
        with offline.connect_as(number) as wire:
            replies = [wire.call(Op.THINK, b"why?") for _ in range(2)]

    assert [reply["success"] for reply in replies] == [True, False]
    assert "'group team'" in replies[1]["error"]


def test_figures_of_the_line_are_the_operator_s(offline: Kernel) -> None:
    with offline.client() as client:
        agent = offline.spawn("a")
        with offline.connect_as(agent) as wire:
            refused = wire.call(Op.METRICS_SYSTEM, b"{}")

        assert refused["code"] == "permission_denied"
        state = {"name": "offline", "model": "offline", "state": "ok", "until": None, "reason": None}
        found = metrics(client)
        assert found.keys() == {"waiting", "in_flight", "jain", "budgets", "providers"}
        assert (found["waiting"], found["in_flight"], found["budgets"]) == ([], [], [])
        assert 0 < found["jain"] <= 1
        assert state in found["providers"]


def test_many_callers_that_ask_at_once_are_all_answered(offline: Kernel) -> None:
    replies: list[dict[str, Any]] = []

    def one(number: int) -> None:
        with offline.client() as client:
            replies.append(client.think(f"question {number}"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(int(reply["content"].split()[-1]) for reply in replies) == list(range(20))


def test_money_can_not_be_limited_where_nothing_has_a_price(slow: Kernel) -> None:
    with slow.client() as client:
        reply = client.spawn("a", command=["true"], llm={"budget": [{"money": 1, "per": "1h"}]})

    assert (reply["success"], reply["code"]) == (False, "bad_request")
    assert "there is no [llm.prices]" in reply["error"]


def test_what_an_agent_has_had_of_the_model_can_be_seen(offline: Kernel) -> None:
    with offline.client() as client:
        agent = relay(offline, client, "frugal")
        answers = [ask(client, agent, "think", prompt="why?") for _ in range(2)]

        spent = up(client.inspect("frugal"))["llm"]["spent"]
        client.kill("frugal", grace=0)

    assert spent["calls"] == 2
    assert spent["input"] + spent["output"] == sum(answer["tokens"] for answer in answers)


def find_entry(client: AgentOSClient, digest: str) -> dict[str, Any]:
    """The entry about a question, once it is written."""

    def find() -> list[dict[str, Any]]:
        return [entry for entry in client.get_audit_log("model", limit=1000)["entries"] if digest in entry["about"]]

    until(find, "it is written")
    [entry] = find()
    return entry


@each_row(("model", "price"), [("offline", None), ("priced", (1, 2))])
def test_the_audit_log_has_tokens_cost_and_a_digest_of_the_question_and_never_its_text(
    offline: Kernel, model: str, price: tuple[int, int] | None
) -> None:
    canonical = f'[["system","be brief"],["user","whatever it is, {model}: Grüße"]]'
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    with offline.client() as client:
        reply = up(client.think(f"whatever it is, {model}: Grüße", model=model, system_instruction="be brief"))
        used = reply["usage"]
        entry = find_entry(client, digest)

    generated = used["output"] + used["thinking"]
    cost = "null" if price is None else f"{used['input'] * price[0] + generated * price[1]:g} USD"
    assert reply["cost"] == (None if price is None else pytest.approx(float(cost.removesuffix(" USD"))))
    tokens = f"in {used['input']}, out {generated}, cost {cost}"
    assert (entry["call"], entry["outcome"]) == ("THINK", "ok")
    assert re.fullmatch(rf"{model} \({tokens}, question sha256:{digest}, queued [0-9]+\.[0-9]{{3}} s\)", entry["about"])
    for file in (offline.state_dir / "audit").iterdir():
        assert b"whatever it is" not in file.read_bytes()


def test_a_question_without_an_answer_has_its_digest_in_the_audit_log(slow: Kernel) -> None:
    digest = hashlib.sha256(b'[["user","once and for ever?"]]').hexdigest()
    with slow.client() as client:
        client.request(Op.THINK, {"prompt": "once and for ever?", "timeout": 0.2}, wait=None)
        entry = find_entry(client, digest)

    assert (entry["outcome"], entry["about"]) == ("timeout", f"offline (question sha256:{digest})")
