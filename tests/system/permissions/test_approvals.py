"""Calls that a rule asks about, of agents and guests of a real kernel, and attempts to get round the person."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.permissions.approvals.page import MAX_LINE_CHARS
from agentos.userland.cli.approvals.approvals import request_lines
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import TaskResult
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    APPROVALS,
    DECIDE,
    EXEC,
    HELLO,
    NOOP,
    PATIENCE,
    READ,
    SEND,
    SPAWN,
    THINK,
    WRITE,
    Wire,
)
from tests.system.agents import SLEEPER, as_agent, up
from tests.system.agents import write as script

ASKS = {
    "level": "sandboxed",
    "ask": {
        "read": ["/workspace/**"],
        "write": ["/workspace/**"],
        "commands": ["*"],
        "send": ["*"],
        "calls": ["SPAWN"],
    },
}


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """The operator; what still waits when the test ends is refused."""
    with kernel.client() as connected:
        yield connected
        for entry in waiting(connected):
            connected.decide(entry["id"], False)
        for agent in connected.list_agents():
            connected.kill(agent_id=agent["id"], grace=0)


def waiting(client: AgentOSClient, count: int | None = None) -> list[dict[str, Any]]:
    """What waits, once that is so much."""
    if count is not None:
        until(lambda: len(client.approvals()["pending"]) == count, f"{count} calls wait")
    found: list[dict[str, Any]] = client.approvals()["pending"]
    return found


def agent(kernel: Kernel, client: AgentOSClient, name: str, **permissions: Any) -> Wire:
    """A connection of version 2 to the socket of a new agent."""
    given = {**ASKS, **permissions}
    number = up(client.spawn(name, script(kernel, "sleeper.py", SLEEPER), permissions=given))["id"]
    wire = kernel.connect_as(number)
    wire.hello()
    return wire


def guest(kernel: Kernel, name: str, **ask: Any) -> Wire:
    wire = kernel.connect()
    reply = wire.call(HELLO, {"protocol": 2, "as": name, "permissions": {"level": "standard", "ask": ask}})
    assert reply["success"], reply
    return wire


def put(kernel: Kernel, client: AgentOSClient, name: str, path: str, text: str) -> None:
    """Write a file in an agent's jail, as the agent does from inside."""
    done = client.exec(f"cat > {path} <<'END'\n{text}\nEND", name=name)
    assert done["success"], done
    assert done["exit_code"] == 0, done


def test_a_read_waits_and_gets_the_file_when_it_is_allowed(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "reader") as wire:
        put(kernel, client, "reader", "notes", "hello")
        wire.send(READ, {"path": "notes"}, 1)
        [entry] = waiting(client, 1)

        assert client.decide(entry["id"], True) == {"success": True, "id": entry["id"]}
        reply = wire.receive().json

    assert reply["content"] == "hello\n"
    assert (entry["agent"], entry["call"], entry["shown"]) == ("reader", "READ", "READ /workspace/notes")
    assert entry["rule"].startswith("ask read /workspace/** (SPAWN by operator#")


def test_a_write_is_shown_as_a_diff_and_refused_with_the_reason(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "writer") as wire:
        put(kernel, client, "writer", "plan", "one\ntwo")
        wire.send(WRITE, {"path": "plan", "content": "one\nthree\n"}, 1)
        [entry] = waiting(client, 1)
        client.decide(entry["id"], False, reason="two is fine")
        reply = wire.receive().json

    assert "-two\n+three" in entry["shown"]
    assert reply["code"] == "approval_refused"
    assert (reply["approval_id"], reply["reason"], reply["bytes_written"]) == (entry["id"], "two is fine", 0)
    assert "a person has refused it: two is fine" in reply["error"]


@pytest.mark.parametrize(
    ("mode", "said"),
    [("write", "4 bytes replace the present file, which"), ("append", "4 bytes are added at the end of")],
)
def test_a_file_that_cannot_be_shown_hides_not_whether_it_is_replaced(
    kernel: Kernel, client: AgentOSClient, mode: str, said: str
) -> None:
    with agent(kernel, client, "giant") as wire:
        assert client.exec("truncate -s 17M plan", name="giant")["exit_code"] == 0
        wire.send(WRITE, {"path": "plan", "content": "mine", "mode": mode}, 1)
        [entry] = waiting(client, 1)

    assert said in entry["shown"]
    assert "can't be shown: it has more than 16 MiB" in entry["shown"]
    assert "+mine" in entry["shown"]


@pytest.mark.parametrize(
    "swap",
    [
        "echo other > plan",
        "rm plan; echo two > plan; echo > unrelated",
        "mv plan old; ln -s old plan",
        "rm plan",
    ],
)
def test_what_a_write_replaces_is_swapped_while_the_person_thinks(
    kernel: Kernel, client: AgentOSClient, swap: str
) -> None:
    with agent(kernel, client, "swapper") as wire:
        put(kernel, client, "swapper", "plan", "two")
        wire.send(WRITE, {"path": "plan", "content": "three"}, 1)
        [entry] = waiting(client, 1)
        assert client.exec(f"touch keep; {swap}", name="swapper")["exit_code"] == 0

        client.decide(entry["id"], True)
        until(lambda: [one["id"] for one in waiting(client)] not in ([], [entry["id"]]), "it is asked anew")
        [again] = waiting(client, 1)
        assert client.exec("cat plan", name="swapper")["stdout"] in ("other\n", "two\n", "")

    assert again["shown"].startswith(f"changed since approval {entry['id']} was given\n")


@pytest.mark.parametrize("swap", ["ln -sf secret notes", "mv secret notes"])
def test_what_a_read_leads_to_is_swapped_while_the_person_thinks(
    kernel: Kernel, client: AgentOSClient, swap: str
) -> None:
    with agent(kernel, client, "turncoat") as wire:
        put(kernel, client, "turncoat", "notes", "harmless")
        put(kernel, client, "turncoat", "secret", "secret")
        wire.send(READ, {"path": "notes"}, 1)
        [entry] = waiting(client, 1)
        assert client.exec(swap, name="turncoat")["exit_code"] == 0

        client.decide(entry["id"], True)
        until(lambda: [one["id"] for one in waiting(client)] not in ([], [entry["id"]]), "it is asked anew")

        assert wire.is_silent()
    [again] = waiting(client, 1)
    assert again["shown"].startswith("changed since")


def test_a_script_is_rewritten_while_the_person_thinks(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "coder") as wire:
        commands = [
            "sh build.sh",
            "sh < build.sh",
            "sh <<'EOF'\n. ./build.sh\nEOF",
            "sh -c 'cd / && cd workspace && sh ./build.sh'",
        ]
        for number, command in enumerate(commands, 1):
            put(kernel, client, "coder", "build.sh", "echo built")
            wire.send(EXEC, {"command": command}, number)
            [entry] = waiting(client, 1)
            put(kernel, client, "coder", "build.sh", "echo stolen")
            client.decide(entry["id"], True)
            seen = [[], [entry["id"]]]
            until(lambda seen=seen: [one["id"] for one in waiting(client)] not in seen, "it is asked anew")  # type: ignore[misc]
            [again] = waiting(client, 1)
            client.decide(again["id"], True)
            reply = wire.receive().json

            marked = [quoted for words, *quoted in entry["lines"] if words == "the agent can change before it runs: "]
            assert any("build.sh" in quoted for [quoted] in marked), command
            assert again["shown"].startswith("changed since"), command
            assert reply["stdout"] == "stolen\n", command  # what the person saw the second time


def test_a_command_shows_its_input_and_its_environment(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "typist") as wire:
        wire.send(EXEC, {"command": "sh", "stdin": "rm -r /\x1b[1A", "env": {"A": "1 B=2", "C": "3"}}, 1)
        [entry] = waiting(client, 1)

    assert "\nenv: A=1 B=2\nenv: C=3\n" in entry["shown"]
    assert "| rm -r /\\u{1b}[1A" in entry["shown"]


def test_the_time_of_a_command_begins_when_it_is_allowed(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "patient") as wire:
        wire.send(EXEC, {"command": "echo done", "timeout": 2}, 1)
        [entry] = waiting(client, 1)
        time.sleep(2.1)
        client.decide(entry["id"], True)

        assert wire.receive().json["stdout"] == "done\n"


def test_what_is_asked_holds_up_nothing_that_is_allowed(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "talker") as wire, kernel.connect() as peer:
        peer.hello()
        box = client.hello()["agent_id"]
        wire.send(SEND, {"to": box, "message": "asked"}, 1)
        wire.send(NOOP, b"allowed", 2)

        assert wire.receive().id == 2
        [entry] = waiting(client, 1)
        assert entry["shown"] == 'SEND to operator\n| "asked"'
        client.decide(entry["id"], True)
        assert wire.receive().json == {"success": True, "delivered_to": box}
        assert [one["message"] for one in client.recv_messages(timeout=PATIENCE)["messages"]] == ["asked"]


def test_a_client_of_version_1_waits_in_order(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "older"), kernel.connect_as(client.inspect("older")["id"]) as old:
        put(kernel, client, "older", "notes", "hello")
        old.send(READ, {"path": "notes"})
        old.send(NOOP, b"after")
        [entry] = waiting(client, 1)
        client.decide(entry["id"], True)

        assert old.receive().json["content"] == "hello\n"
        assert old.receive().body == b"after"


def test_a_caller_that_does_not_wait_has_a_ticket_for_the_same_call(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "hasty") as wire:
        put(kernel, client, "hasty", "notes", "hello")
        assert wire.call(HELLO, {"protocol": 2, "approval_timeout": 0}, 5)["success"]
        refused = wire.call(READ, {"path": "notes"}, 1)
        [entry] = waiting(client, 1)
        assert (refused["code"], refused["approval_id"]) == ("approval_required", entry["id"])
        client.decide(entry["id"], True)

        other = wire.call(READ, {"path": "notes", "limit": 3}, 2)
        once = wire.call(READ, {"path": "notes"}, 3)
        twice = wire.call(READ, {"path": "notes"}, 4)

    assert (other["code"], once["content"], twice["code"]) == ("approval_required", "hello\n", "approval_required")


def test_a_caller_that_hangs_up_leaves_its_entry_and_no_call(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "gone") as wire:
        put(kernel, client, "gone", "notes", "hello")
        wire.send(READ, {"path": "notes"}, 1)
        [entry] = waiting(client, 1)
    number = client.inspect("gone")["id"]
    client.decide(entry["id"], True)

    with kernel.connect_as(number) as again:
        assert again.call(READ, {"path": "notes"})["content"] == "hello\n"


def test_no_agent_and_no_guest_lists_or_decides_whatever_it_is_granted(kernel: Kernel, client: AgentOSClient) -> None:
    mighty = up(client.spawn("mighty", command=["sleep", "1000"], permissions="unrestricted"))["id"]
    with (
        agent(kernel, client, "asker") as wire,
        guest(kernel, "helper", read=["/etc/hostname"]) as other,
        kernel.connect_as(mighty) as another,
    ):
        another.hello()
        wire.send(WRITE, {"path": "plan", "content": "x"}, 1)
        [entry] = waiting(client, 1)
        for each in (other, another):
            for op, body in ((DECIDE, {"id": entry["id"], "allow": True}), (APPROVALS, {})):
                refused = each.call(op, body, 7)
                assert refused["code"] == "permission_denied", refused
        assert wire.call(DECIDE, {"id": entry["id"], "allow": True}, 2)["code"] == "permission_denied"

        assert waiting(client) == [entry]


def test_no_agent_asks_as_if_another_had_spawned_it(kernel: Kernel, client: AgentOSClient) -> None:
    rules = {"level": "sandboxed", "ask": {"read": ["/workspace/**"]}}

    def child(wire: Wire, name: str) -> Wire:
        reply = wire.call(SPAWN, {"name": name, "command": ["sleep", "1000"], "permissions": rules}, 1)
        found = kernel.connect_as(up(reply)["id"])
        found.hello()
        return found

    with (
        agent(kernel, client, "job-1", **rules) as own,
        agent(kernel, client, "other", **rules) as other,
        child(own, "helper") as helper,
        child(other, "job-1-helper") as pretender,
        guest(kernel, "job-1-guest", commands=["*"]) as stranger,
    ):
        for wire in (own, helper, pretender):
            wire.send(READ, {"path": "notes"}, 1)
        stranger.send(EXEC, {"command": "true"}, 1)
        found = {entry["agent"]: entry for entry in waiting(client, 4)}
        told = {one["name"] for one in client.status()["attention"] if one["kind"] == "approval"}

    task = RunningTask(kernel.socket, "job-1", lambda *_: TaskResult("done", "", "", "", 0, 0))
    assert {name: (one["path"], task.concerns(one)) for name, one in found.items()} == {
        "job-1": ("job-1", True),
        "helper": ("job-1/helper", True),
        "job-1-helper": ("other/job-1-helper", False),
        "job-1-guest": ("guest job-1-guest", False),
    }
    assert told == {one["path"] for one in found.values()}
    assert " by other/job-1-helper" in next(request_lines(found["job-1-helper"], time.time(), 80))


def test_status_tells_the_operator_which_agents_wait(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "asking") as wire:
        for number in (1, 2):
            wire.send(WRITE, {"path": f"plan{number}", "content": "x"}, number)
        entries = waiting(client, 2)
        [found] = [one for one in client.status()["attention"] if one["kind"] == "approval"]
        for entry in entries:
            client.decide(entry["id"], False)

        assert (found["name"], found["text"]) == (
            "asking",
            "asking: 2 calls wait for a person: `agentos approvals`",
        )
        assert not [one for one in client.status()["attention"] if one["kind"] == "approval"]


def test_a_rule_that_denies_meanwhile_is_stronger_than_the_person(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "narrowed") as wire:
        put(kernel, client, "narrowed", "notes", "hello")
        number = client.inspect("narrowed")["id"]
        wire.send(READ, {"path": "notes"}, 1)
        [entry] = waiting(client, 1)
        up(client.set_permissions({"level": "sandboxed", "deny": {"read": ["/workspace/notes"]}}, agent_id=number))
        client.decide(entry["id"], True, remember="always")

        assert wire.receive().json["code"] == "permission_denied"
        assert wire.call(READ, {"path": "notes"}, 2)["code"] == "permission_denied"
    client.decide(entry["id"], False, forget=True)


def test_the_life_after_a_restart_gets_nothing_of_the_one_before(kernel: Kernel, client: AgentOSClient) -> None:
    text = (
        "import os, time\nwhile not os.path.exists('/workspace/end'): time.sleep(0.05)\nos.remove('/workspace/end')\n"
    )
    ended = script(kernel, "ends.py", text)
    number = up(client.spawn("phoenix", ended, permissions=ASKS, restart="permanent", workspace="tmp"))["id"]
    with kernel.connect_as(number) as wire:
        wire.hello()
        wire.send(WRITE, {"path": "plan", "content": "x"}, 1)
        [entry] = waiting(client, 1)
        client.exec("touch end", name="phoenix")
        until(lambda: client.inspect("phoenix")["restarts"] >= 1, "it is restarted")
    [shown] = waiting(client, 1)

    assert not shown["caller_present"]
    assert client.decide(entry["id"], True)["code"] == "not_found"
    client.kill("phoenix", grace=0)


def test_an_answer_is_remembered_shown_and_forgotten(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "regular") as wire:
        number = client.inspect("regular")["id"]
        wire.send(EXEC, {"command": "echo hi"}, 1)
        [entry] = waiting(client, 1)
        client.decide(entry["id"], True, remember="agent", for_=3600)
        assert wire.receive().json["stdout"] == "hi\n"

        assert wire.call(EXEC, {"command": "echo hi"}, 2)["stdout"] == "hi\n"
        [answer] = client.request(0x40, {"agent_id": number})["answers"]
        assert (answer["id"], answer["agent"], answer["agent_id"]) == (entry["id"], "regular", number)
        assert (answer["call"], answer["object"]) == ("EXEC", '"echo hi" in "/workspace"')
        assert "answers" not in wire.call(0x40, {}, 3) or wire.call(0x40, {}, 3)["answers"] == []
        wire.send(EXEC, {"command": "echo hi", "stdin": "x"}, 4)
        [other] = waiting(client, 1)
        client.decide(other["id"], False)
        wire.receive()
        assert client.decide(entry["id"], False, forget=True)["success"]
        wire.send(EXEC, {"command": "echo hi"}, 5)
        assert len(waiting(client, 1)) == 1


def test_a_spawn_shows_its_script_and_a_question_its_text(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "parent", ask={**ASKS["ask"], "models": ["*"]}) as wire:  # type: ignore[dict-item]
        put(kernel, client, "parent", "child.py", "print('I am a child')")
        wire.send(
            SPAWN,
            {
                "name": "child",
                "script": "/workspace/child.py",
                "args": ["v" * 5000],
                "permissions": {"level": "minimal"},
            },
            1,
        )
        [spawn] = waiting(client, 1)
        wire.send(THINK, {"prompt": "what is the key?"}, 2)
        _, think = waiting(client, 2)
        put(kernel, client, "parent", "child.py", "print('I am another')")
        client.decide(spawn["id"], True)
        until(lambda: "changed since" in str(waiting(client)), "it is asked anew")

    assert "SPAWN child" in spawn["shown"]
    assert [(words, *(text[:11] for text in quoted)) for words, *quoted in spawn["lines"]] == [
        ("SPAWN ", "child"),
        ("script = ", '"/workspace'),
        ("permissions = ", '{"level":"m'),
        ("args = ", '["vvvvvvvvv'),
        (f"… {5004 - MAX_LINE_CHARS} more characters of this line are not shown",),
        ("script:",),
        ("| ", "print('I am"),
        ("| ", ""),
        (spawn["lines"][-1][0],),
    ], "what matters first, and nothing hides another"
    assert spawn["lines"][-1][0].startswith("all of it: ")
    assert think["lines"][1:] == [["user:"], ["| ", "what is the key?"]]


def test_a_program_that_follows_sees_each_change(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "noisy") as wire, kernel.client() as watcher, watcher.follow_approvals() as lists:
        assert next(lists) == []
        wire.send(WRITE, {"path": "plan", "content": "x"}, 1)
        [entry] = next(lists)
        client.decide(entry["id"], False)
        found = next(lists)
        while found:
            found = next(lists)


def test_nothing_is_held_while_persons_think(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "many") as wire:
        put(kernel, client, "many", "notes", "hello")
        before = kernel.open_files
        for number in range(1, 17):
            wire.send(READ, {"path": "notes", "offset": number}, number)
        waiting(client, 16)

        assert kernel.open_files <= before
        refused = wire.call(READ, {"path": "notes"}, 99)
        assert (refused["code"], refused["reason"]) == ("approval_required", "full")
        assert client.read_file(str(kernel.place / "sleeper.py"))["success"]


def test_a_kernel_that_is_killed_has_lost_and_allowed_none_of_a_hundred(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    target = kernel.place / "target"
    wires = [guest(kernel, f"guest{number}", write=[f"{kernel.place}/**"]) for number in range(7)]
    with kernel.client() as client:
        for at in range(100):
            wires[at // 15].send(WRITE, {"path": str(target), "content": f"{at}"}, at + 1)
        before = waiting(client, 100)
    kernel.kill()
    for wire in wires:
        wire.close()
    kernel.start_again()

    with kernel.client() as client:
        after = waiting(client)
        assert {one["id"]: one["shown"] for one in after} == {one["id"]: one["shown"] for one in before}
        assert not any(one["caller_present"] for one in after)
        for one in after:
            assert client.decide(one["id"], True)["code"] == "not_found"
    with guest(kernel, "guest0", write=[f"{kernel.place}/**"]) as wire, kernel.client() as client:
        wire.send(WRITE, {"path": str(target), "content": "0"}, 1)
        waiting(client, 101)
    assert not target.exists()


def test_an_agent_is_told_what_to_do_in_one_sentence(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "told"):
        number = client.inspect("told")["id"]
        with as_agent(kernel, number) as own:
            own.request(HELLO, {"protocol": 1, "approval_timeout": 0})
            reply = own.write_file("/workspace/plan", "x")

    assert reply["error"].startswith(
        "WRITE /workspace/plan: a person has to agree, by the rule ask write /workspace/** (SPAWN by"
    )
    assert "and then the same call may be made once" in reply["error"]


def test_a_list_is_bounded_and_says_how_many_it_leaves_out(kernel: Kernel, client: AgentOSClient) -> None:
    lines = "x" * 1000 + "\n"
    wires = [guest(kernel, f"guest{number}", write=[f"{kernel.place}/**"]) for number in range(6)]
    for at in range(84):
        content = f"{at}\n{lines * 14}"
        wires[at // 14].send(WRITE, {"path": str(kernel.place / "target"), "content": content}, at + 1)
    until(lambda: sum(count_listed(client)) == 84, "all wait")
    _, omitted = count_listed(client)
    assert omitted > 0
    assert sum(len(one["shown"]) for one in waiting(client)) <= 1 << 20
    for one in waiting(client):
        up(client.decide(one["id"], False))
    assert count_listed(client) == (omitted, 0)
    for wire in wires:
        wire.close()


def count_listed(client: AgentOSClient) -> tuple[int, int]:
    """How many entries a list has, and how many it leaves out."""
    reply = up(client.approvals())
    return len(reply["pending"]), reply["omitted"]
