"""LOGS of several agents and of earlier runs of the kernel: filters, following, and what an agent may see."""

import time
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.errors import NotFound, PermissionDenied, from_reply
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import LOGS, PATIENCE
from tests.system.agents import as_agent, ask, relay, up

COUNTER = """
[[supervisor.children]]
name = "counter"
command = ["sh", "-c", "echo begun; sleep 0.2; echo odd >&2; sleep 1000"]
restart = "transient"
"""
COUNTS = "import time\nfor i in range({}):\n  print(i + 1, flush=True)\n  time.sleep(0.002)"
SELF = """
from agentos_sdk import AgentOSClient
import time
me = AgentOSClient()
print('saw', [one['text'] for one in me.logs(since=0, grep='^mark')['lines']])
print('mark', flush=True)
time.sleep(1000)
"""
HOSTILE = "(a|a)*(a|aa)*(a+)+b"


def texts(client: AgentOSClient, **fields: Any) -> list[str]:
    reply = client.logs(**fields)
    assert reply["success"], reply
    return [line["text"] for line in reply["lines"]]


def say(client: AgentOSClient, name: str, script: str) -> None:
    """Run an agent to its end."""
    client.spawn(name, command=["sh", "-c", script])
    client.wait(name)


def test_lines_of_several_agents_are_merged_in_the_order_of_time(client: AgentOSClient) -> None:
    for number in range(3):
        say(client, f"merge{number % 2}", f"echo line {number}")

    lines = client.logs(names=["merge0", "merge1"], stream="stdout")["lines"]

    assert [(line["name"], line["text"]) for line in lines] == [
        ("merge0", "line 0"),
        ("merge1", "line 1"),
        ("merge0", "line 2"),
    ]
    assert set(lines[0]) == {"at", "stream", "text", "name"}
    assert set(client.logs("merge0", since=0)["lines"][0]) == {"at", "stream", "text"}
    assert "line 2" in texts(client)  # of all


def test_lines_are_filtered(client: AgentOSClient) -> None:
    say(client, "filtered", "echo first; sleep 0.2; echo second >&2; sleep 0.2; echo third")
    one, two, three, _ = client.logs("filtered")["lines"]  # on a slow machine stderr may be read after both of stdout

    assert texts(client, name="filtered", since=two["at"], until=three["at"]) == [two["text"]]
    assert texts(client, name="filtered", until=two["at"]) == [one["text"]]
    assert texts(client, name="filtered", stream="stderr") == ["second"]
    assert texts(client, name="filtered", grep="^(f|t)[a-z]{2,}") == ["first", "third"]
    assert texts(client, name="filtered", grep="ended: exit status 0$", stream="kernel") != []
    assert texts(client, name="filtered", since=0, tail=2, stream="stdout") == ["first", "third"]
    assert texts(client, names=["filtered"], tail=0) == []


def test_an_end_is_shown_once_where_the_kernels_log_is_read_too(client: AgentOSClient) -> None:
    say(client, "brief", "exit 3")

    assert "ended: exit status 3" in texts(client, names=["brief"])
    for fields in ({}, {"names": ["brief", "kernel"]}):
        shown = texts(client, grep="^brief: |^ended: ", tail=100, **fields)
        assert "brief: exit status 3" in shown
        assert "ended: exit status 3" not in shown


@each_row(
    "fields",
    [
        {"stream": "stdin"},
        {"grep": "("},
        {"run": -1},
        {"tail": 2001, "since": 0},
        {"name": "wrong", "names": ["wrong"]},
        {"since": "yesterday"},
    ],
)
def test_a_wrong_filter_is_refused(client: AgentOSClient, fields: dict[str, Any]) -> None:
    if "name" in fields:
        say(client, "wrong", "true")
    field = next(name for name in fields if name != "name" and (name != "since" or len(fields) == 1))

    reply = client.logs(**fields)

    assert (reply["code"], field in reply["error"]) == ("bad_request", True)


def test_a_hostile_pattern_holds_up_nothing(kernel: Kernel, client: AgentOSClient) -> None:
    say(client, "evil", "for i in 1 2 3 4 5 6 7 8; do head -c 8000 /dev/zero | tr '\\0' a; echo; done")

    with kernel.client() as other, other.follow_logs("evil", since=0, grep=HOSTILE) as pages:
        assert list(pages) == []
    assert kernel.answers()


def test_an_agent_sees_itself_and_its_descendants_alone(kernel: Kernel, client: AgentOSClient) -> None:
    say(client, "stranger", "echo secret")
    say(client, "child", "echo secret of an earlier child")
    boss = relay(kernel, client, "logboss")
    up(ask(client, boss, "spawn", name="child", command=["sh", "-c", "echo mine; sleep 1000"]))
    until(lambda: "mine" in texts(client, name="child"), "the child has said it")

    assert {line["name"] for line in ask(client, boss, "logs")["lines"]} == {"child"}
    mine = ask(client, boss, "logs", names=["child"], since=0)["lines"]
    assert [line["text"] for line in mine] == ["mine"]
    assert ask(client, boss, "logs", names=["stranger"])["code"] == "permission_denied"
    assert ask(client, boss, "logs", name="stranger", since=0)["code"] == "permission_denied"
    assert ask(client, boss, "logs", names=["kernel"])["code"] == "not_found"
    assert ask(client, boss, "logs", name="kernel")["code"] == "not_found"


def test_the_log_of_an_agent_outlives_a_kill_of_the_kernel(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(COUNTER + f"[[supervisor.children]]\nname = 'self'\ncommand = ['python3', '-c', {SELF!r}]\n")
    with kernel.client() as client:
        until(lambda: len(texts(client, name="counter", since=0)) == 2, "it has written")
        say(client, "gone", "echo from before")
        until(lambda: texts(client, name="self") == ["saw []", "mark"], "an agent of the file has seen no earlier run")
        for name, text in (("gone", "from before"), ("self", "mark")):
            file = kernel.state_dir / "logs" / f"{name}.1.1.jsonl"
            until(lambda file=file, text=text: file.exists() and text in file.read_text(), "it is on disk")  # type: ignore[misc]
    kernel.kill()
    kernel.start_again()
    kernel.wait_ready()

    with kernel.client() as client:
        until(lambda: texts(client, name="counter") == ["begun", "odd"], "it has written again")
        assert texts(client, name="counter", since=0, grep="begun") == ["begun", "begun"]
        assert texts(client, name="counter", run=0, stream="stderr") == ["odd"]
        assert texts(client, name="counter", run=1) == ["begun", "odd"]
        assert texts(client, name="gone", grep="before") == ["from before"]
        assert "from before" in texts(client, name="gone")  # the registry doesn't know it any more
        assert texts(client, names=["kernel"], run=1)[0].startswith("ready")
        until(lambda: texts(client, name="self") == ["saw ['mark']", "mark"], "it has seen its last run")
        with pytest.raises(NotFound):
            raise_for(client.logs("never-there"))


def raise_for(reply: dict[str, Any]) -> None:
    if not reply["success"]:
        raise from_reply(reply)


@pytest.mark.parametrize("since", [None, 0.0], ids=["from memory", "from disk"])
def test_following_ends_when_the_right_is_taken_away(
    kernel: Kernel, client: AgentOSClient, since: float | None
) -> None:
    talks = ["sh", "-c", "while sleep 0.1; do echo tick; done"]
    number = up(client.spawn("talks", command=talks, permissions="standard"))["id"]
    with as_agent(kernel, number) as agent:
        pages = agent.follow_logs("talks", since=since)
        assert next(iter(pages))["lines"]

        up(client.set_permissions({"level": "standard", "deny": {"calls": ["LOGS"]}}, agent_id=number))

        with pytest.raises(PermissionDenied, match="deny calls LOGS"):
            for _ in pages:
                pass


def test_following_goes_on_over_a_restart_of_the_agent_and_ends_with_it(client: AgentOSClient) -> None:
    script = "echo life; sleep 1; exit 1"
    client.spawn("phoenix", command=["sh", "-c", script], restart="permanent", max_restarts=1, backoff={"first": 0.3})

    with client.follow_logs("phoenix", since=0) as pages:
        found = [line["text"] for page in pages for line in page["lines"]]

    assert found.count("life") == 2
    assert found[-1].startswith(("given up", "ended"))


def test_following_all_shows_agents_that_come_later_and_ends_at_until(kernel: Kernel, client: AgentOSClient) -> None:
    say(client, "earlier", "echo marked earlier")
    with kernel.client() as other, other.follow_logs(since=0, grep="^marked", until=time.time() + PATIENCE) as pages:
        found = list(next(pages)["lines"])
        say(client, "later", "echo marked later")
        found += next(pages)["lines"]
    with kernel.client() as other, other.follow_logs(since=0, grep="^marked", until=time.time() + 0.5) as pages:
        again = [line for page in pages for line in page["lines"]]

    assert [(line["name"], line["text"]) for line in found] == [
        ("earlier", "marked earlier"),
        ("later", "marked later"),
    ]
    assert again == found


def test_following_gives_each_line_once_while_they_are_written_to_disk(client: AgentOSClient) -> None:
    client.spawn("steady", command=["python3", "-c", COUNTS.format(500)])

    with client.follow_logs("steady", since=0, stream="stdout") as pages:
        found = [int(line["text"]) for page in pages for line in page["lines"]]

    assert found == list(range(1, 501))


def test_followings_of_one_caller_that_wait_for_each_other_give_each_line_once(
    kernel: Kernel, client: AgentOSClient
) -> None:
    client.spawn("brisk", command=["python3", "-c", COUNTS.format(300)])
    with kernel.connect() as wire:
        wire.hello()
        for number in range(1, 31):
            wire.send(LOGS, {"name": "brisk", "since": 0, "stream": "stdout", "follow": True}, number)
        found: dict[int, list[int]] = {number: [] for number in range(1, 31)}
        left = set(found)
        while left:
            reply = wire.receive()
            found[reply.id] += [int(line["text"]) for line in reply.json["lines"]]
            if reply.op == LOGS:
                left.remove(reply.id)

    assert found == {number: list(range(1, 301)) for number in found}


def test_the_last_state_of_agents_is_logged_when_the_root_gives_up(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        '[supervisor]\nstrategy = "one_for_all"\nintensity = 0\n'
        + COUNTER
        + '\n[[supervisor.children]]\nname = "bad"\ncommand = ["sh", "-c", "sleep 1; exit 3"]\n'
    )
    assert kernel.wait_end() == 1
    logged = next(kernel.state_dir.glob("logs/kernel.1.1.jsonl")).read_text()

    assert "last state of bad: exited, restarts: 0, last end: exit status 3" in logged.replace("failed", "exited")
    assert "last state of counter: " in kernel.said
    assert "root: given up" in logged
