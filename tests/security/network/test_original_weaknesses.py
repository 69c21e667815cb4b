"""What was wrong with the permissions, files, commands and audit of the original in C++, each tried on a real kernel.

There, any agent could raise itself, a child got whatever was asked for it, files and commands were root's, paths were
judged by their names and commands by what they had in them, one command stopped everybody, and the log forgot.
"""

import contextlib
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    EXEC,
    GET_AUDIT_LOG,
    GET_PERMS,
    HELLO,
    NOOP,
    READ,
    SET_AUDIT_CONFIG,
    SET_PERMS,
    SPAWN,
    WRITE,
    Wire,
)
from tests.system.agents import known

SLEEP = ["sleep", "1000"]
ALL = {"allow": {"read": ["/**"], "write": ["/**"], "commands": ["*"], "calls": ["*"]}}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory on the host; not in /tmp, for that is another one for a jailed agent."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="aos-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def secret(place: Path) -> Path:
    """A file that everybody on the host may read, but that no agent was granted."""
    path = place / "secret"
    path.write_text("the secret")
    return path


@contextlib.contextmanager
def agent(kernel: Kernel, client: AgentOSClient, name: str, **more: Any) -> Iterator[Wire]:
    """A connection that is this agent's, as its own program would have it."""
    reply = client.spawn(name, command=SLEEP, **more)
    assert reply["success"], reply
    with kernel.connect_as(reply["id"]) as wire:
        yield wire


def write(wire: Wire, path: str, content: str = "") -> None:
    reply = wire.call(WRITE, {"path": path, "content": content})
    assert reply["success"], reply


def read(wire: Wire, path: object) -> dict[str, Any]:
    found: dict[str, Any] = wire.call(READ, {"path": str(path)})
    return found


def run(wire: Wire, command: object, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = wire.call(EXEC, {"command": command, **more})
    return found


# -- "Any agent could raise itself to unrestricted" --------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
def test_no_agent_raises_itself(kernel: Kernel, client: AgentOSClient, secret: Path) -> None:
    with agent(kernel, client, "climber") as wire:
        me = wire.ask(NOOP).id
        for wanted in ({"level": "unrestricted"}, {"permissions": ALL}):
            for whose in ({}, {"agent_id": me}):
                assert wire.call(SET_PERMS, {**whose, **wanted})["code"] == "permission_denied"
        wire.call(HELLO, {"level": "unrestricted"})
        wire.call(HELLO, {"as": "operator", "permissions": ALL})

        assert wire.call(GET_PERMS)["permissions"]["level"] == "sandboxed"
        assert read(wire, secret)["code"] == "permission_denied"


@pytest.mark.usefixtures("any_user")
def test_nor_does_it_raise_another_one_to_be_raised_by_it(kernel: Kernel, client: AgentOSClient, secret: Path) -> None:
    with agent(kernel, client, "one") as one, agent(kernel, client, "other") as other:
        for wire, whom in ((one, other.ask(NOOP).id), (other, one.ask(NOOP).id)):
            assert wire.call(SET_PERMS, {"agent_id": whom, "level": "unrestricted"})["code"] == "permission_denied"

        assert read(one, secret)["code"] == read(other, secret)["code"] == "permission_denied"


# -- "A child could get more than its parent" --------------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
def test_no_child_gets_more_than_its_parent(kernel: Kernel, client: AgentOSClient, secret: Path) -> None:
    with agent(kernel, client, "parent") as parent:
        refused = parent.call(SPAWN, {"name": "child", "command": SLEEP, "permissions": "unrestricted"})
        assert refused["code"] == "permission_denied"

        child = parent.call(SPAWN, {"name": "child", "command": SLEEP, "permissions": ALL})["id"]
        parent.call(SET_PERMS, {"agent_id": child, "permissions": {"level": "sandboxed", **ALL}})

        with kernel.connect_as(child) as wire:
            assert read(wire, secret)["code"] == "permission_denied"
            assert wire.call(WRITE, {"path": str(secret), "content": "mine"})["code"] == "permission_denied"
            assert wire.call(GET_AUDIT_LOG)["code"] == "permission_denied"
    assert secret.read_text() == "the secret"


# -- "READ, WRITE and EXEC ran as root in the kernel's own process" ----------------------------------------------------


def test_files_are_read_and_written_as_the_agents_own_user(kernel: Kernel, client: AgentOSClient, place: Path) -> None:
    place.chmod(0o777)
    (place / "closed").write_text("nobody's")
    (place / "closed").chmod(0)
    with agent(kernel, client, "shares", workspace=str(place)) as wire:
        assert read(wire, "closed")["code"] == "permission_denied"  # root would read it

    with agent(kernel, client, "owner") as wire:
        write(wire, "made")
        program = Path("/proc", str(known(client, "owner")))
        made, itself = (program / "root/workspace/made").stat(), program.stat()

    assert made.st_uid == itself.st_uid
    assert made.st_uid != 0
    assert not made.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)


def test_commands_run_behind_the_agents_walls_and_as_its_own_user(kernel: Kernel, client: AgentOSClient) -> None:
    spaces = ("mnt", "pid", "net", "ipc", "uts", "user")
    ours = [os.readlink(f"/proc/self/ns/{space}") for space in spaces]
    links = " ".join(f"/proc/self/ns/{space}" for space in spaces)
    line = f"id -u; readlink {links}; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status"

    with agent(kernel, client, "runner") as wire:
        done = run(wire, line)

    uid, *theirs, caps, privileges, filtered = done["stdout"].splitlines()
    assert uid == "1000"
    assert len(theirs) == len(spaces)
    assert not set(theirs) & set(ours)
    assert (caps.split()[1], privileges.split()[1], filtered.split()[1]) == ("0000000000000000", "1", "2")


# -- "Path rules were checked by name and not on what was opened" ------------------------------------------------------


def test_a_link_with_a_harmless_name_is_judged_by_where_it_leads(
    kernel: Kernel, client: AgentOSClient, place: Path, secret: Path
) -> None:
    granted = place / "granted"
    granted.mkdir()
    (granted / "notes.txt").symlink_to(secret)
    (granted / "up").symlink_to(place)
    rules = {"read": [f"{granted}/**"], "write": [f"{granted}/**"]}

    with agent(kernel, client, "linked", permissions={"level": "sandboxed", "allow": rules}) as wire:
        assert run(wire, "echo KEY=hunter2 | tee .env; ln -s .env readme.md")["exit_code"] == 0

        for path in (granted / "notes.txt", granted / "up" / "secret", "/workspace/readme.md"):
            reply = read(wire, path)
            assert (reply["code"], reply["content"]) == ("permission_denied", "")
        for path in (granted / "notes.txt", granted / "up" / "secret"):  # a link is replaced, and never followed
            wire.call(WRITE, {"path": str(path), "content": "mine"})
    assert secret.read_text() == "the secret"


# -- "Commands were filtered by substring" -----------------------------------------------------------------------------

LS_ALONE = {"level": "readonly", "allow": {"commands": ["ls *"]}}
AROUND = (
    *("rm precious; echo ls", "ls; rm precious", "ls && rm precious", "ls | xargs rm", "ls\nrm precious"),
    *("ls & rm precious", "ls $(rm precious)", "ls `rm precious`", "ls <(rm precious)", "l\\s; r\\m precious"),
    *(
        "ls > precious",
        ": > precious",
        "PATH=. ls; rm precious",
        "env ls; env rm precious",
        "bash -c 'ls; rm precious'",
    ),
    *("eval 'rm precious # ls'", "ls() { rm precious; }; ls", "alias ls='rm precious'\nls", "rm precious #ls"),
    *("./ls", "/workspace/ls", "${x:=rm} precious"),
)


@pytest.mark.usefixtures("any_user")
def test_nothing_runs_beside_the_command_that_is_allowed(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "lister", permissions=LS_ALONE) as wire:
        plant = "echo gold > precious; echo rm precious > ls; chmod +x ls"
        assert client.exec(plant, name="lister")["exit_code"] == 0

        assert run(wire, "ls -a")["stdout"].split() == [".", "..", "ls", "precious"]
        codes = {line: run(wire, line).get("code") for line in AROUND}
        codes["a list"] = run(wire, ["rm", "precious"])["code"]
        codes["PATH"] = run(wire, "ls", env={"PATH": "/workspace"}).get("code")

        assert {line: code for line, code in codes.items() if code != "permission_denied"} == {}
        assert read(wire, "precious")["content"] == "gold\n"


# -- "A 2 s command stopped everybody" ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
def test_no_other_agent_waits_for_a_command_that_runs(kernel: Kernel, client: AgentOSClient) -> None:
    with agent(kernel, client, "busy") as busy, agent(kernel, client, "other") as other:
        with kernel.connect_as(busy.ask(NOOP).id) as beside:
            busy.send(EXEC, {"command": "touch begun; sleep 2002", "timeout": 3000})
            until(lambda: read(beside, "begun")["success"], "it runs")

        for number in range(100):
            assert other.ask(NOOP, b"%d" % number).body == b"%d" % number
        write(other, "notes", "meanwhile")
        assert run(other, ["cat", "notes"])["stdout"] == "meanwhile"

        busy.socket.setblocking(False)
        with pytest.raises(BlockingIOError):  # it runs on
            busy.socket.recv(1)


# -- "Denials weren't audited, and an agent could empty the log" -------------------------------------------------------


def denials(client: AgentOSClient, name: str) -> list[tuple[str, str]]:
    entries = client.get_audit_log(limit=1000)["entries"]
    return [(one["call"], one["about"]) for one in entries if one["name"] == name and one["decision"] == "deny"]


@pytest.mark.usefixtures("any_user")
def test_every_denial_is_written_down_and_names_its_rule(kernel: Kernel, client: AgentOSClient, secret: Path) -> None:
    off = dict.fromkeys(client.set_audit_config()["config"], False)
    assert client.set_audit_config(**off)["success"]

    with agent(kernel, client, "denied", permissions={"level": "sandboxed", "deny": {"calls": ["TREE"]}}) as wire:
        me = wire.ask(NOOP).id
        read(wire, secret)
        wire.call(WRITE, {"path": str(secret), "content": ""})
        run(wire, "sudo id")
        run(wire, "$(echo; sudo id)")
        wire.call(SET_PERMS, {"level": "unrestricted"})
        wire.call(SPAWN, {"name": "child", "command": SLEEP, "permissions": "unrestricted"})
        wire.call(GET_AUDIT_LOG)
        wire.call(0x16)

    wanted = {"READ", "WRITE", "EXEC", "SET_PERMS", "SPAWN", "GET_AUDIT_LOG", "TREE"}
    until(lambda: {call for call, _ in denials(client, "denied")} == wanted, "all of them are in the log")
    assert len(denials(client, "denied")) == 8
    entries = [one for one in client.get_audit_log(agent_id=me)["entries"] if one["decision"] == "deny"]
    assert all(one["rule"] and one["outcome"] == "permission_denied" for one in entries)
    assert client.set_audit_config(**dict.fromkeys(off, True))["success"]


@pytest.mark.usefixtures("any_user")
def test_no_agent_empties_the_log_or_has_less_written_down(kernel: Kernel, client: AgentOSClient) -> None:
    log = kernel.state_dir / "audit"
    with agent(kernel, client, "eraser") as wire:
        assert wire.call(SET_AUDIT_CONFIG, {"log_files": False})["code"] == "permission_denied"
        assert wire.call(GET_AUDIT_LOG)["code"] == "permission_denied"
        for path in (log / "000001.db", log / "000001.head"):
            assert read(wire, path)["code"] == "permission_denied"
            assert wire.call(WRITE, {"path": str(path), "content": ""})["code"] == "permission_denied"
        assert run(wire, f"rm -f {log}/*.db {log}/*.head").get("exit_code") == 0  # there is no such directory in there

    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in log.iterdir())
    until(lambda: len(denials(client, "eraser")) == 6, "it was written down what it tried")
    with contextlib.closing(sqlite3.connect(f"file:{log}/000001.db?mode=ro", uri=True)) as database:
        assert database.execute("SELECT min(seq) FROM entries").fetchone() == (1,)
