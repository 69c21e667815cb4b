"""READ and WRITE: files of the host's for its operator, and its own for an agent, through a real kernel."""

import base64
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import BadRequest, NotFound
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import NOOP
from tests.system.agents import ask, lines, relay, up

MIB = 1 << 20
MOST = 16 << 20  # max_payload


@pytest.fixture
def directory(kernel: Kernel) -> Path:
    """The operator's files."""
    place = kernel.place / "files"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture
def agent(kernel: Kernel, client: AgentOSClient) -> int:
    """A jailed agent that makes calls for us."""
    return relay(kernel, client, "a")


# -- The operator ------------------------------------------------------------------------------------------------------


def test_what_is_written_can_be_read(client: AgentOSClient, directory: Path) -> None:
    path = str(directory / "notes")

    assert client.write_file(path, "Grüße\n\0") == {"success": True, "bytes_written": 9}
    assert client.write_file(path, "more", mode="append") == {"success": True, "bytes_written": 4}
    assert client.read_file(path) == {"success": True, "content": "Grüße\n\0more", "size": 13}
    assert client.read_file(path, offset=9, limit=2)["content"] == "mo"
    assert (directory / "notes").read_bytes() == "Grüße\n\0more".encode()


def test_bytes_travel_as_base64(client: AgentOSClient, directory: Path) -> None:
    path, data = str(directory / "bytes"), bytes(range(256)) * 1000

    assert up(client.write_file(path, data))["bytes_written"] == len(data)
    assert up(client.write_file(path, base64.b64encode(b"!").decode(), "append", "base64"))["bytes_written"] == 1
    assert base64.b64decode(up(client.read_file(path, encoding="base64"))["content"]) == data + b"!"


@pytest.mark.parametrize(
    "text", ["YQ", "YQ=", "Y Q=", "YQ==\n", "YQ==YQ==", "Ä===", "=", "a" * (256 << 10) + "=", "!!!!"]
)
def test_what_isnt_base64_is_refused_and_nothing_is_written(client: AgentOSClient, directory: Path, text: str) -> None:
    path = directory / "never"

    for mode in ("write", "append"):
        reply = client.write_file(str(path), text, mode, "base64")
        assert (reply["code"], reply["error"].split(":")[0]) == ("bad_request", "content"), reply
    assert not path.exists()


def test_what_isnt_text_is_refused_at_its_byte(client: AgentOSClient, directory: Path) -> None:
    (directory / "odd").write_bytes(b"ok\xffrest" + b"x" * 100_000 + b"\xfe")

    for offset, at in ((0, 2), (1, 2), (2, 2), (3, 100_007)):
        reply = client.read_file(str(directory / "odd"), offset)
        assert reply["code"] == "bad_request"
        assert f"not UTF-8 at byte {at}: read it with encoding base64" in reply["error"]


def test_text_can_be_read_in_parts_of_any_size(client: AgentOSClient, directory: Path) -> None:
    text = "aä€😀" * 30_000
    (directory / "text").write_text(text)

    for limit in (4, 5, 7, 49_153, 100_000):
        parts: list[str] = []
        offset = 0
        while offset < (size := len(text.encode())) and len(parts) < 50:
            part = up(client.read_file(str(directory / "text"), offset, limit))
            assert part["size"] == size
            parts.append(part["content"])
            offset += len(parts[-1].encode())
        assert text.startswith("".join(parts))
        assert all(limit - 4 < len(part.encode()) <= limit for part in parts[:-1])
    for limit in (1, 2, 3):
        assert "at least 4" in client.read_file(str(directory / "text"), 6, limit)["error"]


def test_a_file_that_ends_in_the_middle_of_a_character_is_no_text(client: AgentOSClient, directory: Path) -> None:
    (directory / "cut").write_bytes("aä".encode()[:-1])

    assert "not UTF-8 at byte 1" in client.read_file(str(directory / "cut"))["error"]
    assert "not UTF-8 at byte 1" in client.read_file(str(directory / "cut"), limit=2)["error"]
    assert up(client.read_file(str(directory / "cut"), limit=1))["content"] == "a"


def test_relative_paths_are_those_of_the_client_or_of_the_configuration(
    client: AgentOSClient, kernel: Kernel, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    client.write_file("by-sdk", "x")
    up(client.request(Op.WRITE, {"path": "files/by-wire", "content": "y"}))

    assert {"by-sdk", "by-wire"} <= set(os.listdir(directory))
    assert client.request(Op.READ, {"path": "files/by-wire"})["content"] == "y"


@each_row(
    ("fields", "code", "text"),
    [
        ({}, "bad_request", "path: required field missing"),
        ({"path": ""}, "bad_request", "path: expected a path"),
        ({"path": "a\0b"}, "bad_request", "path: expected a string, got a NUL"),
        ({"path": "/", "offset": -1}, "bad_request", "offset: expected a whole number from 0 up"),
        ({"path": "/", "limit": -1}, "bad_request", "limit: expected a whole number from 0 up"),
        ({"path": "/", "limit": "5"}, "bad_request", "limit: expected a whole number"),
        ({"path": "/", "encoding": "latin-1"}, "bad_request", "encoding: expected utf-8 or base64"),
        ({"path": "/etc"}, "bad_request", "expected a file, and this is a directory"),
        ({"path": "/none/such"}, "not_found", "/none/such: there is no such file"),
        ({"path": "/etc/passwd/x"}, "not_found", "something on the way is no directory"),
        ({"path": "/" + "x" * 300}, "bad_request", "too long"),
        ({"path": "/" + "x/" * 100_000}, "bad_request", "at most 4095 bytes"),
        ({"path": "~nobody/x"}, "bad_request", "~ is the operator's home"),
        ({"path": "/proc/self/environ"}, "permission_denied", "proc"),
        ({"path": "/proc/self/root/etc/passwd"}, "permission_denied", "proc"),
        ({"path": "/dev/zero"}, "bad_request", "this is a device"),
    ],
)
def test_what_cant_be_read_is_refused(kernel: Kernel, fields: dict[str, object], code: str, text: str) -> None:
    with kernel.client() as client:
        reply = client.request(Op.READ, fields)

        assert reply["content"] == ""
        assert reply["code"] == code, reply
        assert text in reply["error"]


@each_row(
    ("fields", "code", "text"),
    [
        ({"path": "/tmp/x"}, "bad_request", "content: required field missing"),
        ({"path": "/tmp/x", "content": 5}, "bad_request", "content: expected a string"),
        ({"path": "/tmp/x", "content": "", "mode": "w"}, "bad_request", "mode: expected write or append"),
        ({"path": "/tmp/none/such", "content": ""}, "not_found", "there is no directory /tmp/none"),
        ({"path": "/tmp", "content": ""}, "bad_request", "expected a file, and this is a directory"),
        ({"path": "/tmp/", "content": ""}, "bad_request", "is a directory"),
        ({"path": "/dev/null", "content": ""}, "bad_request", "this is a device"),
        ({"path": "/proc/sys/kernel/hostname", "content": "x"}, "permission_denied", "proc"),
        ({"path": "/proc/self/new", "content": "x"}, "permission_denied", "proc"),
        ({"path": "/etc/passwd/x", "content": ""}, "not_found", "no directory /etc/passwd"),
    ],
)
def test_what_cant_be_written_is_refused(kernel: Kernel, fields: dict[str, object], code: str, text: str) -> None:
    with kernel.client() as client:
        for mode in ("write", "append"):
            reply = client.request(Op.WRITE, {"mode": mode, **fields})

            assert reply["code"] == code, reply
            assert text in reply["error"]


def test_the_tilde_is_the_operators_home(client: AgentOSClient) -> None:
    reply = client.read_file("~/no such file")

    assert (reply["code"], reply["error"]) == ("not_found", "~/no such file: there is no such file")


def test_all_that_fits_into_a_reply_can_be_read_and_no_more(client: AgentOSClient, directory: Path) -> None:
    path = str(directory / "large")
    frame = len(b'{"success":true,"content":"","size":16777216}')
    (directory / "large").write_bytes(b"x" * (MOST - frame))
    assert len(up(client.read_file(path))["content"]) == MOST - frame

    (directory / "large").write_bytes(b"\1" * (3 * MIB))  # six bytes each as JSON
    for reply in (client.read_file(path), client.read_file(path, limit=3 * MIB)):
        assert (reply["code"], reply["error"].split(":")[0]) == ("bad_request", "limit")
    assert up(client.read_file(path, limit=2 * MIB))["content"] == "\1" * (2 * MIB)


def test_a_text_of_many_short_lines_can_be_written(client: AgentOSClient, directory: Path) -> None:
    text = 'ä"\n' * (2 * MIB)

    assert up(client.write_file(str(directory / "lines"), text))["bytes_written"] == 4 * 2 * MIB
    assert (directory / "lines").read_text() == text


def test_all_others_are_answered_while_large_files_come_and_go(
    kernel: Kernel, client: AgentOSClient, directory: Path
) -> None:
    """None waits for all of it to be over: some thousand answers are usual."""
    text = "0123456789abcdeä" * (15 * MIB // 17)
    path = str(directory / "large")
    over = threading.Event()

    def busy() -> None:
        with kernel.client() as other:
            for _ in range(4):
                up(other.write_file(path, text))
                assert up(other.read_file(path))["content"] == text
        over.set()

    worker = threading.Thread(target=busy)
    worker.start()
    answered = 0
    with kernel.connect() as wire:
        while not over.is_set():
            assert wire.ask(NOOP, b"x").body == b"x"
            answered += 1
    worker.join()

    assert answered > 100


async def test_the_trio_client_reads_and_writes_too(kernel: Kernel, directory: Path) -> None:
    async with connect(kernel.socket) as other:
        path = str(directory / "trio")
        assert (await other.write_file(path, "text")).bytes_written == 4
        assert (await other.write_file(path, b"\xff", mode="append")).bytes_written == 1
        content = await other.read_file(path, limit=4)
        assert (content.content, content.size) == ("text", 5)
        assert (await other.read_file(path, encoding="base64")).content == base64.b64encode(b"text\xff").decode()
        with pytest.raises(BadRequest, match="not UTF-8 at byte 4"):
            await other.read_file(path)
        with pytest.raises(NotFound):
            await other.write_file(f"{path}/none/such", "x")


async def test_many_at_once_all_get_what_is_theirs(kernel: Kernel, directory: Path) -> None:
    async with connect(kernel.socket) as other, trio.open_nursery() as nursery:

        async def to_and_fro(number: int) -> None:
            path = str(directory / f"file-{number}")
            await other.write_file(path, f"{number}" * 1000)
            assert (await other.read_file(path)).content == f"{number}" * 1000

        for number in range(100):
            nursery.start_soon(to_and_fro, number)


def test_a_caller_that_goes_leaves_nothing_unfinished(kernel: Kernel, client: AgentOSClient, directory: Path) -> None:
    files = kernel.open_files
    body = json.dumps({"path": str(directory / "gone"), "content": "x" * (12 * MIB)}).encode()
    for _ in range(5):
        with kernel.connect() as wire:
            wire.send(Op.WRITE, body)

    until(lambda: kernel.open_files <= files, "all files are closed")
    until(lambda: not any(name.startswith(".agentos-") for name in os.listdir(directory)), "no unfinished file is left")
    if (directory / "gone").exists():
        assert os.stat(directory / "gone").st_size == 12 * MIB


# -- A jailed agent ----------------------------------------------------------------------------------------------------


def test_an_agent_reads_and_writes_its_own(client: AgentOSClient, agent: int) -> None:
    for path in ("notes", "/workspace/notes", "./notes", "//workspace//notes", "/workspace/../workspace/notes"):
        expected = "permission_denied" if ".." in path else None
        reply = ask(client, agent, "request", op=Op.WRITE, fields={"path": path, "content": path})
        assert reply.get("code") == expected, reply
        if expected is None:
            assert up(ask(client, agent, "request", op=Op.READ, fields={"path": "notes"}))["content"] == path
            assert up(client.exec("cat notes", name="a"))["stdout"] == path


def test_what_an_agent_writes_belongs_to_it(client: AgentOSClient, agent: int) -> None:
    up(ask(client, agent, "write_file", path="mine", content="x"))
    up(ask(client, agent, "write_file", path="log", content="x", mode="append"))

    assert up(client.exec("stat -c '%U %a' mine log", name="a"))["stdout"] == "agent 644\nagent 644\n"
    assert up(client.exec("echo more >> mine && rm mine log", name="a"))["exit_code"] == 0


def test_an_agent_reads_its_code_and_cant_write_it(client: AgentOSClient, agent: int) -> None:
    assert "recv_messages" in up(ask(client, agent, "read_file", path="/agent/relay.py"))["content"]
    for path in ("/agent/relay.py", "/agent/new"):
        for mode in ("write", "append"):
            reply = ask(client, agent, "write_file", path=path, content="x", mode=mode)
            assert reply["code"] == "permission_denied", reply


def test_in_the_sdk_a_relative_path_is_one_of_the_working_directory(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "elsewhere", cwd="/agent")

    assert "recv_messages" in up(ask(client, agent, "read_file", path="relay.py"))["content"]
    assert ask(client, agent, "request", op=Op.READ, fields={"path": "relay.py"})["code"] == "not_found"


def test_its_tmp_is_out_of_reach_and_that_is_said(client: AgentOSClient, agent: int) -> None:
    up(client.exec("echo x > /tmp/x", name="a"))

    for reply in (
        ask(client, agent, "read_file", path="/tmp/x"),
        ask(client, agent, "write_file", path="/tmp/x", content="x"),
    ):
        assert reply["code"] == "permission_denied"
        assert "your /tmp is your programs' alone" in reply["error"]


def test_links_in_a_workspace_lead_as_far_as_it_goes(client: AgentOSClient, agent: int) -> None:
    up(client.exec("mkdir d; echo x > d/x; ln -s d/x in; ln -s /etc/passwd out; ln -s ../etc/passwd up", name="a"))

    assert up(ask(client, agent, "read_file", path="in"))["content"] == "x\n"
    for path in ("out", "up"):
        for reply in (
            ask(client, agent, "read_file", path=path),
            ask(client, agent, "write_file", path=path, content="x"),
        ):
            assert (reply["code"], "leads out of /workspace" in reply["error"]) == ("permission_denied", True), reply


def test_a_full_workspace_is_a_quota_that_is_used_up(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "small", limits={"disk": "1M", "file_size": "512K"})

    reply = ask(client, agent, "run", code="globals()['r'] = me.write_file('x', 'x' * 600_000)")
    assert reply == "done"
    for content, said in (("me.write_file('x', 'x' * 600_000)", "limits.file_size is 524288"), (FILL, "no space left")):
        ask(client, agent, "run", code=f"me.write_file('out', __import__('json').dumps({content}))")
        out = json.loads(up(ask(client, agent, "read_file", path="out"))["content"])
        assert (out["code"], said in out["error"]) == ("quota_exceeded", True), out
    assert up(client.exec("ls -A", name="small"))["stdout"].split()[:2] == ["f0", "f1"]


FILL = "[me.write_file(f'f{number}', 'x' * 400_000) for number in range(3)][-1]"


@pytest.mark.parametrize("workspace", ["tmp", "keep", "host"])
def test_any_kind_of_workspace_will_do(kernel: Kernel, client: AgentOSClient, workspace: str) -> None:
    place = kernel.place / "shared"
    place.mkdir(exist_ok=True)
    name = f"in-{workspace}"
    agent = relay(kernel, client, name, workspace=str(place) if workspace == "host" else workspace)
    up(client.exec("mkdir -p d; echo theirs > d/theirs", name=name))

    up(ask(client, agent, "write_file", path="d/mine", content="mine"))
    up(ask(client, agent, "write_file", path="d/theirs", content="more", mode="append"))

    assert up(ask(client, agent, "read_file", path="d/theirs"))["content"] == "theirs\nmore"
    assert up(client.exec("stat -c %U d/mine; cat d/mine", name=name))["stdout"] == "agent\nmine"
    if workspace == "host":
        assert os.stat(place / "d" / "mine").st_uid == os.geteuid()


def test_protected_names_stay_as_they_are(kernel: Kernel, client: AgentOSClient) -> None:
    """Linux would let the kernel rename something over them: it is not in the mount namespace that protects them."""
    place = kernel.place / "repository"
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / ".git" / "config").write_text("[core]\n")
    (place / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    agent = relay(kernel, client, "committer", workspace=str(place))

    for path in (".git/hooks/pre-commit", ".git/config", ".envrc", ".vscode/tasks.json", ".bashrc", "agentos.toml"):
        for mode in ("write", "append"):
            reply = ask(client, agent, "write_file", path=path, content="evil", mode=mode)
            assert reply["code"] == "permission_denied", (path, reply)
    up(ask(client, agent, "write_file", path=".git/index", content="an index"))

    assert (place / ".git" / "config").read_text() == "[core]\n"
    assert os.listdir(place / ".git" / "hooks") == []
    assert os.stat(place / ".bashrc").st_size == 0
    assert up(client.exec("echo evil > .bashrc || echo refused", name="committer"))["stdout"] == "refused\n"


def test_a_file_that_tools_run_by_its_name_is_taken_out_and_told(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "tested"
    place.mkdir()
    relay(kernel, client, "planter", workspace=str(place))
    assert not os.path.lexists(place / "conftest.py")

    files = "echo evil > conftest.py; mkdir sub; echo fine > sub/conftest.py; echo fine > pytest.ini"
    up(client.exec(files, name="planter"))
    until(lambda: not os.path.lexists(place / "conftest.py"), "it is taken out")
    until(lambda: any("an agent has made it" in line for line in lines(client, "planter", "kernel")), "it is told")
    up(client.exec("ln -s sub/conftest.py conftest.py", name="planter"))
    client.kill("planter")

    assert sorted(each for each in os.listdir(place) if not each.startswith(".")) == ["pytest.ini", "sub"]
    [kept, *_] = (kernel.state_dir / "removed").glob("*-conftest.py")
    assert kept.read_text() == "evil\n"


def test_a_file_that_was_there_is_protected(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "owned"
    place.mkdir()
    (place / "conftest.py").write_text("mine")
    relay(kernel, client, "neighbour", workspace=str(place))

    said = up(client.exec("echo evil > conftest.py || rm conftest.py || echo refused", name="neighbour"))

    assert said["stdout"] == "refused\n"
    assert (place / "conftest.py").read_text() == "mine"


def test_an_agent_that_is_paused_or_has_much_to_do_keeps_its_files(client: AgentOSClient, agent: int) -> None:
    up(ask(client, agent, "write_file", path="x", content="x"))
    up(client.pause("a"))
    up(client.resume("a"))

    assert up(ask(client, agent, "read_file", path="x"))["content"] == "x"


def test_an_agent_without_a_jail_names_files_of_the_hosts(
    kernel: Kernel, client: AgentOSClient, directory: Path
) -> None:
    agent = relay(kernel, client, "bare", sandboxed=False, permissions="unrestricted")

    up(ask(client, agent, "write_file", path=str(directory / "bare"), content="x"))

    assert (directory / "bare").read_text() == "x"
    assert stat.S_IMODE(os.stat(directory / "bare").st_mode) == 0o644
