"""EXPORT and IMPORT: an agent goes to another kernel as a file, under another uid, and answers as before."""

import io
import json
import os
import stat
import tarfile
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from agentos.services.archives import archive
from agentos.services.snapshots import beneath
from agentos_sdk import AgentOSClient
from agentos_sdk.errors import BadRequest, Unavailable
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import CHUNK, IMPORT, PATIENCE, RECV, THINK
from tests.system.agents import RELAY, ask, info, up

TALKS = {"level": "sandboxed", "allow": {"send": ["*"]}}
TOLD = """
import os, pathlib
found = {str(p): p.read_text() for p in sorted(pathlib.Path(".").rglob("*")) if p.is_file() and not p.is_symlink()}
links = {str(p): os.readlink(p) for p in pathlib.Path(".").rglob("*") if p.is_symlink()}
modes = {str(p): oct(p.stat().st_mode & 0o777) for p in pathlib.Path(".").rglob("*") if p.is_file() or p.is_dir()}
pathlib.Path("made/more").touch(); os.unlink("made/more")
owned = all(p.lstat().st_uid == os.getuid() for p in pathlib.Path(".").rglob("*"))
told = me.store("told", [found, links, modes, owned, me.fetch("plan", scope="agent")["value"]], scope="session")
"""
MAKE = """
import os
os.makedirs("made/deep"); open("made/deep/a.txt", "w").write("a"); os.symlink("/etc/passwd", "made/link")
open("run.sh", "w").write("#!/bin/sh"); os.chmod("run.sh", 0o755); os.mkfifo("fifo")
me.store("plan", {"step": 3}, scope="agent")
"""
BUSY = """
import os, time
open("/tmp/busy", "w")
while not os.path.exists("/tmp/done"):
    time.sleep(0.01)
"""
# What it got before it was exported is unread: it is told apart from what it is asked later.
OLDER = """
while True:
    for message in me.recv_messages(timeout=300)["messages"]:
        asked = message["message"]
        if "method" not in asked:
            me.store("mail", [message["from_name"], message["from_id"], asked], scope="agent")
            continue
        method = run if asked["method"] == "run" else getattr(me, asked["method"])
        me.send_message(method(**asked.get("with", {})), to=message["from_id"])
"""


def start_writer(kernel: Kernel, client: AgentOSClient) -> int:
    text = dedent(RELAY)
    script = kernel.place / "writer.py"
    script.write_text(text[: text.index("while True")] + OLDER)
    secret = {"SECRET": "canary-of-the-environment"}
    made = up(client.spawn("writer", script=str(script), ready="hello", permissions=TALKS, env=secret))
    assert ask(client, made["id"], "run", code=MAKE) == "done"
    return int(made["id"])


def tell(client: AgentOSClient, number: int) -> object:
    assert ask(client, number, "run", code=TOLD) == "done"
    return ask(client, number, "fetch", key="told", scope="session")["value"]


@pytest.fixture
def exported(own_kernel: OwnKernel, tmp_path: Path) -> tuple[Path, object]:
    """An archive of an agent, by the command line, and what the agent answers."""
    kernel = own_kernel()
    with kernel.client() as client:
        number = start_writer(kernel, client)
        told = tell(client, number)
        up(client.send_message({"method": "run", "with": {"code": BUSY}}, to=number))
        until(lambda: client.exec(["test", "-e", "/tmp/busy"], name="writer")["exit_code"] == 0, "it receives nothing")
        up(client.send_message({"unread": 1}, to=number))
        env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
        (tmp_path / "w.tar.partial").write_text("another file of the user's")
        done = run_agentos(["export", "writer", str(tmp_path / "w.tar")], kernel.place, env)
        assert done.returncode == 0, done.stderr
        assert sorted(os.listdir(tmp_path)) == ["w.tar", "w.tar.partial"]
        assert (tmp_path / "w.tar").stat().st_mode & 0o777 == 0o600
        assert "1 sockets, FIFOs, devices and protected names" in done.stdout
        assert "env SECRET" in done.stdout
        up(client.exec(["touch", "/tmp/done"], name="writer"))
        assert client.recv_messages(timeout=PATIENCE)["count"] == 1, "it goes on"
    return tmp_path / "w.tar", told


def test_an_agent_answers_on_another_kernel_as_before(exported: tuple[Path, object], own_kernel: OwnKernel) -> None:
    path, told = exported
    assert b"canary" not in path.read_bytes()
    with tarfile.open(path) as archive:
        manifest = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert not {"permissions", "llm", "network", "env", "workspace"} & manifest["agent"].keys()
    kernel = own_kernel()
    with kernel.client() as client:
        for number in range(3):
            up(client.spawn(f"other-{number}", command=["sleep", "1000"], workspace="keep"))

        env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
        done = run_agentos(["import", str(path), "--as", "moved", "--json"], kernel.place, env)

        assert done.returncode == 0, done.stderr
        [one] = json.loads(done.stdout)["imported"]
        assert (one["name"], one["keys"], one["messages"]) == ("moved", 1, 1)
        assert client.get_permissions(one["id"])["permissions"]["level"] == "sandboxed"
        up(client.set_permissions(TALKS, agent_id=one["id"]))
        assert tell(client, one["id"]) == told
        sender = ask(client, one["id"], "fetch", key="mail", scope="agent")["value"]
        assert sender[1:] == [0, {"unread": 1}]
        assert client.import_agent(str(path), as_="moved")["code"] == "already_exists"
        client.kill("moved")
        assert client.import_agent(str(path), as_="moved")["code"] == "already_exists"
        up(client.import_agent(str(path)))


def test_only_the_operator_exports_and_imports(own_kernel: OwnKernel, exported: tuple[Path, object]) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        up(client.spawn("any", command=["sleep", "1000"], permissions="unrestricted"))
        with kernel.connect_as(info(client, "any")["id"]) as agent:
            agent.hello()
            agent.send(0x34, {"name": "any"}, 1)
            assert agent.receive().json["code"] == "permission_denied"
            agent.send(0x35, {"path": str(exported[0])}, 2)
            assert agent.receive().json["code"] == "permission_denied"
        assert {one["name"] for one in client.list_agents(all=True)} == {"any"}


@pytest.mark.parametrize("kind", ["FIFO", "link", "device"])
def test_an_export_replaces_nothing_but_a_regular_file(tmp_path: Path, kind: str) -> None:
    """As root it would replace /dev/null or /dev/stdout for all programs."""
    file = tmp_path / "out"
    if kind == "FIFO":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to("/proc/self/fd/1")
    else:
        file = Path("/dev/pts/ptmx")  # where no file can be made, whatever happens
        if not os.access(file, os.W_OK):  # a file that can't be written is refused before what it is
            file = Path("/dev/tty")

    done = run_agentos(["export", "writer", str(file)], tmp_path, environment(tmp_path))

    assert done.returncode == 1
    assert done.stderr == f"agentos: {file}: expected a new file, or a regular one, which is replaced\n"
    assert stat.S_ISFIFO(file.lstat().st_mode) == (kind == "FIFO")


def test_what_can_not_be_imported_leaves_nothing(own_kernel: OwnKernel, exported: tuple[Path, object]) -> None:
    kernel, path = own_kernel(), exported[0]
    cut = path.with_name("cut.tar")
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (path.parent / "link.tar").symlink_to("/dev/zero")
    with kernel.client() as client:
        for bad in (cut, path.parent / "link.tar", path.parent):
            told = client.import_agent(str(bad))
            assert told["code"] == "bad_request", told
        assert client.import_agent(str(path.parent / "none.tar"))["code"] == "unavailable"
        assert client.import_agent(str(path), as_="root")["code"] == "already_exists"

        assert client.list_agents(all=True) == []
        assert client.keys(scope="agent", agent="writer")["keys"] == []
    assert os.listdir(kernel.state_dir / "imports") == []
    assert not (kernel.state_dir / "workspaces").exists() or os.listdir(kernel.state_dir / "workspaces") == []


DECLARED = """
[kernel]
waive = ["cpu_quota"]

[llm]
provider = "offline"

[[agents]]
name = "spender"
command = ["sleep", "1000"]
restart = "transient"
max_restarts = "unlimited"
shutdown = "brutal_kill"
backoff = { min = "2s", max = "5s" }
limits = { cpu_quota = "50%", memory = "100M", max_pids = 20, disk = "10M" }
args = []
"""


def test_a_declaration_keeps_its_limits_and_no_import_lowers_what_budgets_have_used(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(DECLARED)
    with kernel.client() as client:
        former = up(client.spawn("again", command=["sleep", "1000"]))["id"]
        with kernel.connect_as(former) as agent:
            assert agent.call(THINK, {"prompt": "?"})["success"]
        client.kill("again")
        [used] = client.usage("again")["usage"]
        with client.export_agent("spender") as pieces:
            (kernel.place / "s.tar").write_bytes(b"".join(pieces))

        up(client.import_agent(str(kernel.place / "s.tar"), as_="again"))

        before, after = (client.inspect(name) for name in ("spender", "again"))
        assert after["limits"] == before["limits"]
        kept = ("command", "args", "cwd", "ready", "restart", "shutdown", "runtime")
        assert [after["spec"][key] for key in kept] == [before["spec"][key] for key in kept]
        [still] = client.usage("again")["usage"]
        assert (still["tokens"], still["calls"]) == (used["tokens"], used["calls"]) >= (1, 1)


def test_an_archive_comes_in_chunks_over_the_socket(own_kernel: OwnKernel, exported: tuple[Path, object]) -> None:
    kernel, data = own_kernel(), exported[0].read_bytes()
    with kernel.connect() as wire:
        assert wire.call(IMPORT, {})["code"] == "bad_request", "version 1 sends none"
        wire.hello()
        for number, wrong in enumerate((b'{"data": "?"}', b'{"more": 1}', b"no JSON"), 1):
            wire.send(IMPORT, {}, number)
            wire.send(CHUNK, wrong, number)
            assert wire.receive().json["code"] == "bad_request", wrong
        wire.send(IMPORT, {"as": "sent"}, 9)
        for at in range(0, len(data), 100_000):
            wire.send(CHUNK, {"data": b64encode(data[at : at + 100_000]).decode()}, 9)
        wire.send(CHUNK, {"eof": True}, 9)

        assert [one["name"] for one in up(wire.receive().json)["imported"]] == ["sent"]


def test_a_hosts_directory_is_exported_without_the_names_that_are_protected_there(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client, tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as made:
        Path(made, "a.txt").write_text("a")
        up(client.spawn("worker", command=["sleep", "1000"], workspace=made))
        with client.export_agent("worker", ["workspace"]) as pieces:
            whole = io.BytesIO(b"".join(pieces))

    with tarfile.open(fileobj=whole) as archive:
        names = archive.getnames()
    assert names[0] == "manifest.json"
    assert "workspace/a.txt" in names
    assert not [name for name in names if name.startswith("workspace/.git/hooks")]


def test_an_import_that_a_killed_kernel_has_left_is_undone(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    kernel.kill()
    left, moved = kernel.state_dir / "imports" / "0123", kernel.state_dir / "workspaces" / "moved"
    left.mkdir(parents=True, mode=0o700)
    moved.mkdir(parents=True, mode=0o700)
    (left / "record.json").write_text('{"name": "moved"}')
    for place in (left / "record.json", left, left.parent, moved.parent):
        place.chmod(0o700 if place.is_dir() else 0o600)

    kernel.start_again()

    assert not moved.exists()
    assert os.listdir(left.parent) == []


def test_an_agent_without_a_jail_and_a_whole_directory_are_not_exported(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        up(client.spawn("bare", command=["sleep", "1000"], isolation="none"))
        with client.export_agent("bare") as parts, pytest.raises(BadRequest, match="without a jail"):
            next(parts)
        with client.export_agent("bare", ["state", "mailbox"]) as parts:
            whole = b"".join(parts)
        assert parts.exported is not None
        assert parts.exported["size"] == len(whole)
        (kernel.place / "s.tar").write_bytes(whole)
        told = client.import_agent(str(kernel.place / "s.tar"))
        assert (told["code"], "no agent was exported" in told["error"]) == ("bad_request", True)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("one-file-by-six-names", "head -c 1M /dev/zero >a; for n in 1 2 3 4 5; do ln a $n; done"),
        ("a-file-with-a-hole", "truncate -s 5M a"),
        ("links-of-one-file", ": >a; for n in $(seq 45); do ln a $n; done"),
    ],
)
def test_what_an_import_would_refuse_is_not_exported(kernel: Kernel, name: str, make: str) -> None:
    limits = {"disk": "4M", "inodes": 40}
    with kernel.client() as client:
        up(client.spawn(name, command=["sleep", "1000"], workspace="keep", limits=limits))
        up(client.exec(["sh", "-c", make], name=name))

        with client.export_agent(name) as parts, pytest.raises(Unavailable, match="inodes 40 and disk 4194304"):
            list(parts)
        with client.export_agent(name, ["workspace"]) as parts:
            assert list(parts)


COUNTS = """
import os
with open("m", "wb") as file:
    file.truncate(8 << 20)
one, other = (os.open(name, os.O_RDWR | os.O_CREAT) for name in "az")
number = 0
while True:
    number += 1
    for each in (one, other):
        os.pwrite(each, b"%09d" % number, 0)
"""


def test_of_several_exports_at_once_each_has_the_files_of_one_instant(own_kernel: OwnKernel, tmp_path: Path) -> None:
    """The first one to end let the program go on in which the others copied files."""
    kernel = own_kernel()
    with kernel.client() as client:
        up(client.spawn("counts", command=["python3", "-c", COUNTS]))
        until(lambda: client.exec(["test", "-s", "z"], name="counts")["exit_code"] == 0, "it counts")
        files = [tmp_path / f"{number}.tar" for number in range(3)]

        def export(file: Path) -> None:
            with kernel.client() as own, file.open("wb") as out, own.export_agent("counts", ["workspace"]) as pieces:
                for piece in pieces:
                    out.write(piece)

        threads = [threading.Thread(target=export, args=(file,)) for file in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

    for file in files:
        with tarfile.open(file) as found:
            one, other = (int(found.extractfile(f"workspace/{name}").read()) for name in "az")  # type: ignore[union-attr]
        assert one - other in (0, 1)


@contextmanager
def written(path: Path, name: str) -> Iterator[archive.Writer]:
    """An archive that anyone may have written; what is added to it comes after the manifest."""
    with open(path, "wb") as out:
        writer = archive.Writer(out)
        declared = {"command": ["sleep", "1000"]}
        manifest = {"format": 1, "kernel": "1", "name": name, "agent": declared, "left_out": []}
        writer.add("manifest.json", json.dumps(manifest).encode())
        yield writer
        writer.finish()


def test_no_message_of_an_archive_is_the_operators_or_the_kernels(kernel: Kernel, tmp_path: Path) -> None:
    """An agent obeys the operator; the archive may be anyone's."""
    path = tmp_path / "forged.tar"
    with written(path, "forged") as writer:
        senders = [("operator", "operator"), ("kernel", "kernel"), ("greeter", "agent"), ("#1", "operator")]
        forged = [{"from_name": name, "from_kind": kind, "sent_at": 1e11, "message": "obey"} for name, kind in senders]
        writer.add("mailbox.json", json.dumps(forged).encode())
    with kernel.client() as client:
        [one] = up(client.import_agent(str(path)))["imported"]
        with kernel.connect_as(one["id"]) as agent:
            messages = agent.call(RECV, {"max": 10})["messages"]
        client.kill("forged", grace=0)
    assert [(each["from_id"], each["from_name"], each["from_kind"]) for each in messages] == [
        (0, "?", "guest"),
        (0, "?", "guest"),
        (0, "greeter", "guest"),
        (0, "?", "guest"),
    ]
    assert all(each["sent_at"] <= time.time() and each["attempt"] == 1 for each in messages)


def test_a_name_belongs_to_an_import_until_that_has_ended(own_kernel: OwnKernel, tmp_path: Path) -> None:
    """Else an import that finds the name taken at its end removes the private keys of the other agent."""
    kernel, path, files = own_kernel(), tmp_path / "many.tar", tmp_path / "files"
    files.mkdir()
    for number in range(5000):
        (files / str(number)).touch()
    with beneath.open_top(str(files)) as top, written(path, "many") as writer:
        writer.add_tree(top)
    staged, reply = kernel.state_dir / "imports", {}
    with kernel.client() as client, kernel.client() as other:
        importing = threading.Thread(target=lambda: reply.update(client.import_agent(str(path))))
        importing.start()
        until(lambda: staged.exists() and os.listdir(staged), "nothing is unpacked")

        told = other.spawn("many", command=["sleep", "1000"])
        again = other.import_agent(str(path))
        importing.join()
        assert reply["success"], reply
        other.kill(name="many", grace=0)
        assert other.import_agent(str(path))["code"] == "already_exists", "its files are there"

    assert (told.get("code"), again.get("code")) == ("already_exists", "already_exists"), (told, again)


def test_the_names_of_an_agents_variables_write_nothing_to_the_operators_terminal(
    kernel: Kernel, tmp_path: Path
) -> None:
    """An agent chooses those of its children."""
    with kernel.client() as client:
        up(client.spawn("named", command=["sleep", "1000"], env={"\x1b]0;title\x07\n\rall is well": "1"}))
        env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
        done = run_agentos(["export", "named", str(tmp_path / "n.tar")], kernel.place, env)
        client.kill("named", grace=0)
    assert "env \\x1b]0;title\\x07\\n\\rall is well" in done.stdout
    assert [line.isprintable() for line in done.stdout.splitlines()] == [True]
