"""What no agent may do to the audit log: stay out of it, empty it, fill it, forge it, learn secrets from it."""

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.services.audit.chain import Row
from agentos.services.audit.query import Query
from agentos.services.audit.verify import verify_log
from agentos_sdk import AgentOSClient
from agentos_sdk.errors import ConnectionFailed
from tests.conftest import OwnKernel
from tests.services.audit.audited import found, sound
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, killing_new_agents, running, until
from tests.support.mounts import small_disk
from tests.support.wire import PATIENCE
from tests.system.agents import ask, relay, up

EVERYTHING = {"level": "unrestricted"}


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """The operator; the agents that the test leaves are killed."""
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected


def log_of(kernel: Kernel) -> Path:
    return kernel.state_dir / "audit"


def rows(kernel: Kernel, **query: Any) -> list[Row]:
    """Entries of calls: those of agents' lives are the kernel's own."""
    return [row for row in found(log_of(kernel), Query(**query)) if not row.call.startswith("AGENT_")]


def written(kernel: Kernel, count: int, **query: Any) -> list[Row]:
    """Wait until there are as many entries: what nobody waits for is written a moment later."""
    until(lambda: len(rows(kernel, **query)) >= count, f"{count} entries of {query}")
    return rows(kernel, **query)


# -- Stay out of it ----------------------------------------------------------------------------------------------------


def test_what_is_refused_is_written_down_with_the_rule(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "refused")

    assert ask(client, agent, "read_file", path="/etc/shadow")["code"] == "permission_denied"

    [row] = written(kernel, 1, name="refused", decision="deny")
    assert (row.agent, row.kind, row.call, row.outcome) == (agent, "agent", "READ", "permission_denied")
    assert row.rule
    assert "shadow" in row.about


@pytest.mark.usefixtures("any_user")
@pytest.mark.parametrize("call", ["write_file", "exec", "spawn"])
def test_no_act_takes_place_that_was_not_announced(kernel: Kernel, client: AgentOSClient, call: str) -> None:
    agent = relay(kernel, client, f"acts-{call}")
    what: dict[str, dict[str, Any]] = {
        "write_file": {"path": "/workspace/a.txt", "content": "hello"},
        "exec": {"command": "echo hello"},
        "spawn": {"name": f"child-{call}", "command": ["sleep", "1000"]},
    }

    up(ask(client, agent, call, **what[call]))

    intent, outcome = written(kernel, 2, name=f"acts-{call}", calls=[call.split("_")[0].upper()])
    assert (intent.phase, intent.agent) == ("intent", agent)
    assert (outcome.phase, outcome.outcome, outcome.intent) == ("outcome", "ok", intent.seq)


@pytest.mark.usefixtures("any_user")
def test_with_all_logging_switched_off_refusals_acts_and_the_switch_itself_are_still_logged(
    kernel: Kernel, client: AgentOSClient
) -> None:
    agent = relay(kernel, client, "switched")
    off = client.set_audit_config(log_audit=False)["config"]
    off = client.set_audit_config(**dict.fromkeys(off, False))["config"]
    try:
        assert not any(off.values())
        assert ask(client, agent, "get_audit_log")["code"] == "permission_denied"
        up(ask(client, agent, "write_file", path="/workspace/a.txt", content="hello"))
        up(ask(client, agent, "read_file", path="/workspace/a.txt"))
        up(ask(client, agent, "write_file", path="/workspace/a.txt", content="hello"))
    finally:
        client.set_audit_config(**dict.fromkeys(off, True))

    seen = [(row.call, row.decision, row.phase) for row in written(kernel, 5, name="switched")]
    act = [("WRITE", "allow", "intent"), ("WRITE", "allow", "outcome")]
    assert seen == [("GET_AUDIT_LOG", "deny", "outcome"), *act, *act]
    intents = [row.about for row in rows(kernel, calls=["SET_AUDIT_CONFIG"]) if row.phase == "intent"]
    assert intents[-3] == "log_audit off"
    assert "log_files off" in intents[-2]


# -- Empty it, forge it ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
@pytest.mark.parametrize("call", ["get_audit_log", "set_audit_config"])
def test_an_agent_can_neither_read_the_log_nor_set_what_is_in_it(
    kernel: Kernel, client: AgentOSClient, call: str
) -> None:
    agent = relay(kernel, client, f"curious-{call}")

    reply = ask(client, agent, call)

    assert reply["code"] == "permission_denied"
    assert written(kernel, 1, name=f"curious-{call}")[0].decision == "deny"


@pytest.mark.usefixtures("any_user")
def test_an_agent_that_was_allowed_to_reads_all_of_it(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "auditor", permissions={"level": "sandboxed", "allow": {"calls": ["GET_AUDIT_LOG"]}})

    page = ask(client, agent, "get_audit_log", limit=5)

    assert page["count"] == len(page["entries"]) == 5
    assert page["entries"][-1]["hash"] == next(row.hash for row in rows(kernel) if row.seq == page["entries"][-1]["id"])


def test_no_agent_in_a_jail_gets_at_the_files_however_much_it_may(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "thief", permissions=EVERYTHING)
    before = (log_of(kernel) / "000001.head").read_bytes()

    for name in ("000001.head", "000001.db", "000001.db-wal"):
        path = str(log_of(kernel) / name)
        assert not ask(client, agent, "read_file", path=path)["success"]
        assert not ask(client, agent, "write_file", path=path, content="")["success"]
        assert not ask(client, agent, "write_file", path=path, content="1 00 1.0\n", mode="append")["success"]
        assert ask(client, agent, "exec", command=f"cat {path}")["exit_code"] != 0
        assert ask(client, agent, "exec", command=["truncate", "-s", "0", path])["exit_code"] != 0
        assert ask(client, agent, "exec", command=["rm", path])["exit_code"] != 0

    assert (log_of(kernel) / "000001.head").read_bytes().startswith(before)
    assert sound(log_of(kernel))


def test_no_call_of_any_caller_reaches_the_audit_logs_files(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as operator:
        agent = relay(kernel, operator, "unjailed", isolation="none", permissions=EVERYTHING)
        for name in ("000001.head", "000001.db", "000001.db-wal", "000002.db"):
            path = str(log_of(kernel) / name)
            for reply in (
                operator.read_file(path),
                operator.write_file(path, ""),
                operator.exec(f"echo > {path}"),
                ask(operator, agent, "write_file", path=path, content="1 00 1.0\n", mode="append"),
            ):
                assert reply["code"] == "permission_denied", reply
                assert "default denials" in reply["rule"]
        operator.kill("unjailed", grace=0)

    assert sound(log_of(kernel))


@pytest.mark.usefixtures("any_user")
def test_no_text_makes_a_second_entry_or_commands_a_terminal(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "writer")
    evil = ["echo", "\n9999 kernel KERNEL_STOP ok\n\x1b[2J\x1b]0;owned\x07\u202e"]

    up(ask(client, agent, "exec", command=evil))

    intent, outcome = written(kernel, 2, name="writer", calls=["EXEC"])
    assert intent.about.isprintable()
    assert outcome.about.isprintable()
    assert rows(kernel, name="writer") == [intent, outcome]
    shown = run_agentos(["audit", "--state-dir", str(kernel.state_dir)], kernel.place, os.environ)
    assert shown.returncode == 0, shown.stderr
    assert all(line.isprintable() for line in shown.stdout.splitlines())


@pytest.mark.usefixtures("any_user")
def test_no_secret_of_a_command_is_anywhere_in_its_files(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "leaky")
    secret = "sk-proj-4f9aB2c8dE1f7A6b5C3d"

    up(ask(client, agent, "exec", command=f"API_KEY={secret} true; echo 'Authorization: Bearer {secret}'"))

    assert "[redacted]" in written(kernel, 2, name="leaky", calls=["EXEC"])[0].about
    for path in log_of(kernel).iterdir():
        assert secret.encode() not in path.read_bytes()


# -- Fill it -----------------------------------------------------------------------------------------------------------

LOOP = """
import socket, struct
from agentos_sdk import AgentOSClient
with AgentOSClient() as kernel:
    kernel.hello()
    frame = struct.pack("<IIBQ", 0x41474E54, 0, 0x76, 2) + b"{}"
    for _ in range(300):
        kernel._socket.sendall(frame * 100)
        left = 100
        while left:
            head = kernel._socket.recv(17, socket.MSG_WAITALL)
            length = struct.unpack("<IIBQ", head)[3]
            assert b"permission_denied" in kernel._socket.recv(length, socket.MSG_WAITALL)
            left -= 1
"""


@pytest.mark.usefixtures("any_user")
def test_an_agent_that_is_refused_in_a_loop_neither_fills_the_disk_nor_is_forgotten(
    kernel: Kernel, client: AgentOSClient
) -> None:
    script = kernel.place / "loop.py"
    script.write_text(LOOP)
    before = size_of(log_of(kernel))

    up(client.spawn("flooder", str(script)))
    assert client.wait("flooder", timeout=300)["exit_code"] == 0

    until(lambda: sum(row.repeated for row in rows(kernel, name="flooder")) == 30_000, "all are counted")
    assert len(rows(kernel, name="flooder")) < 2000
    assert size_of(log_of(kernel)) - before < 5 << 20
    assert kernel.answers()


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


# -- Lose it -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
@pytest.mark.usefixtures("long")
@pytest.mark.usefixtures("kernels")
def test_a_kernel_that_is_killed_at_any_moment_has_written_down_whatever_it_answered() -> None:
    chance = random.Random(4)
    with running(None) as kernel:
        for life in range(4):
            answered = answered_until_killed(kernel, life, chance.randint(1, 40))

            intents = [row.about for row in rows(kernel, calls=["EXEC"]) if row.phase == "intent"]
            assert sound(log_of(kernel))
            assert [name for name in answered if not any(name in about for about in intents)] == []
            kernel.start_again()

        assert [row.call for row in rows(kernel, calls=["AUDIT_CUT", "AUDIT_LOST"])] == []


def answered_until_killed(kernel: Kernel, life: int, count: int) -> list[str]:
    """What a client had run by the kernel, which is killed after ``count`` of them or a few more."""
    answered: list[str] = []

    def act() -> None:
        with contextlib.suppress(ConnectionFailed), kernel.client() as client:
            for number in itertools.count():
                name = f"agent-{life}-{number}-"
                up(client.exec(["true", name], timeout=PATIENCE))
                answered.append(name)

    actor = threading.Thread(target=act)
    actor.start()
    until(lambda: len(answered) >= count, "some were answered")
    kernel.kill()
    actor.join()
    return answered


@pytest.mark.usefixtures("any_user")
@pytest.mark.usefixtures("kernels")
def test_a_kernel_whose_log_was_cut_while_it_was_away_says_so_and_serves() -> None:
    with running(None) as kernel:
        kernel.stop()
        os.truncate(log_of(kernel) / "000001.head", 0)
        kernel.start_again()

        kernel.wait_line("the audit log was tampered with or damaged")
        assert kernel.answers()
        assert [row.call for row in rows(kernel, calls=["AUDIT_CUT"])] == ["AUDIT_CUT"]
        assert not verify_log(log_of(kernel)).sound


@pytest.mark.usefixtures("any_user")
@pytest.mark.usefixtures("kernels")
def test_without_room_for_the_log_nothing_is_done_and_that_is_said() -> None:
    with running(None) as kernel:
        kernel.stop()
        with small(log_of(kernel)):
            kernel.start_again()
            with kernel.client() as client:
                fill(log_of(kernel))
                replies = [client.exec(["sh", "-c", f"echo {number} {'x' * 400}"]) for number in range(400)]
                refused = [reply for reply in replies if not reply["success"]]
                (log_of(kernel) / "ballast").unlink()
                up(client.exec(["true"]))
            kernel.stop()
            done = [row for row in rows(kernel, calls=["EXEC"]) if row.phase == "intent"]

            assert refused
            assert {reply["code"] for reply in refused} == {"unavailable"}
            assert "the audit log can't be written" in refused[0]["error"]
            assert str(log_of(kernel)) in refused[0]["error"]
            assert len(done) == len(replies) - len(refused) + 1
            assert sound(log_of(kernel))


@contextlib.contextmanager
def small(place: Path) -> Iterator[None]:
    """A file system of a megabyte and a half with what is in ``place``, until the block is left."""
    kept = {path.name: path.read_bytes() for path in place.iterdir()}
    with small_disk(place, "1536K"):
        for name, data in kept.items():
            (place / name).write_bytes(data)
        yield


def fill(place: Path) -> None:
    """Take all the room that is left."""
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
