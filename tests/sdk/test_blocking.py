"""The blocking client: every method against a real kernel."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient, CallError, ConnectionFailed, default_socket
from agentos_sdk.errors import NotFound
from agentos_sdk.opcodes import Op
from agentos_sdk.project import project_id
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as connected:
        yield connected


@pytest.fixture
def agent(client: AgentOSClient) -> Iterator[str]:
    """The name of an agent that has said two lines and goes on living."""
    client.spawn("speaker", command=["sh", "-c", "echo one; echo two >&2; sleep 1000"])
    yield "speaker"
    client.kill(name="speaker")


def test_bytes_and_text_are_echoed(client: AgentOSClient) -> None:
    assert client.echo("héllo") == "héllo"
    assert client.echo(b"bytes") == client.noop("bytes") == "bytes"
    assert client.call(Op.NOOP, b"\xff\x00") == b"\xff\x00"


def test_our_own_id_is_known_from_the_first_reply_on(client: AgentOSClient) -> None:
    assert client.agent_id is None

    welcome = client.hello()

    assert welcome["success"]
    assert client.agent_id == welcome["agent_id"]


def test_connecting_twice_is_one_connection_and_disconnecting_ends_it(kernel: Kernel) -> None:
    client = kernel.client()
    assert client.connect()
    first = client.hello()["agent_id"]
    assert client.connect()
    assert client.hello()["agent_id"] == first

    client.disconnect()
    client.disconnect()

    assert client.hello()["agent_id"] != first  # connects again
    client.disconnect()


def test_after_exit_the_next_call_connects_again(client: AgentOSClient) -> None:
    first = client.hello()["agent_id"]

    assert client.exit() == "goodbye"

    assert client.hello()["agent_id"] != first


def test_an_agents_life_from_spawn_to_wait(client: AgentOSClient) -> None:
    spawned = client.spawn("sleeper", command=["sleep", "1000"], restart_policy="never")
    assert spawned["success"], spawned
    [listed] = [each for each in client.list_agents() if each["name"] == "sleeper" and each["running"]]
    assert (listed["id"], listed["pid"]) == (spawned["id"], spawned["pid"])
    assert "sleeper" in json.dumps(client.tree())

    assert client.pause("sleeper") == {"success": True, "paused": True, "agent_id": spawned["id"]}
    assert client.resume(agent_id=spawned["id"])["resumed"]
    assert client.kill("sleeper", grace=2) is True

    ended = client.wait(agent_id=spawned["id"], timeout=PATIENCE)
    assert ended["success"]
    assert ended["signal"] == 15


def test_relative_paths_are_those_of_this_process(
    kernel: Kernel, client: AgentOSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel.place / "where.py").write_text("import os, time; print(os.getcwd(), flush=True); time.sleep(1000)")
    monkeypatch.chdir(kernel.place)

    assert client.spawn("where", "where.py", sandboxed=False)["success"]

    with kernel.client() as follower:
        first = next(iter(follower.follow_logs("where")))
    assert first["lines"][0]["text"] == str(kernel.place)
    assert client.kill("where")


def test_logs_are_the_last_lines(client: AgentOSClient, agent: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(lines := client.logs(agent)["lines"]) < 2:
        assert time.monotonic() < deadline, lines

    assert {(line["stream"], line["text"]) for line in lines} == {("stdout", "one"), ("stderr", "two")}
    assert len(client.logs(agent, tail=1)["lines"]) == 1
    assert client.logs(agent, tail=0)["lines"] == []


def test_followed_logs_end_with_the_agent(client: AgentOSClient) -> None:
    client.spawn("counter", command=["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.15; done"])

    pages = list(client.follow_logs("counter"))

    assert [line["text"] for page in pages for line in page["lines"] if line["stream"] == "stdout"] == ["1", "2", "3"]


def test_following_an_unknown_agent_raises_what_the_kernel_says(client: AgentOSClient) -> None:
    with pytest.raises(NotFound):
        next(client.follow_logs("nobody"))


def test_messages_by_id_by_name_and_to_all(kernel: Kernel, client: AgentOSClient) -> None:
    with kernel.client() as other:
        other_id = other.hello()["agent_id"]
        assert other.register_name("other-one")["agent_id"] == other_id

        assert client.send_message({"n": 1}, to=other_id)["delivered_to"] == other_id
        assert client.send_message(None, to_name="other-one")["success"]
        assert client.broadcast([3])["delivered_count"] >= 1

        got = other.recv_messages(timeout=60)
        assert [each["message"] for each in got["messages"]] == [{"n": 1}, None, [3]]
        assert other.recv_messages(max_messages=1) == {"success": True, "count": 0, "messages": []}


def test_recv_waits_as_long_as_it_is_told_to(client: AgentOSClient) -> None:
    begin = time.monotonic()

    assert client.recv_messages(timeout=0.3)["count"] == 0

    assert time.monotonic() - begin > 0.25


def test_recv_may_wait_longer_than_the_clients_own_timeout(kernel: Kernel) -> None:
    with kernel.client(timeout=0.2) as impatient:
        assert impatient.recv_messages(timeout=0.5)["count"] == 0


def test_a_failed_call_is_a_reply_and_no_exception(client: AgentOSClient) -> None:
    assert client.kill("nobody") is False
    assert client.wait("nobody")["code"] == "not_found"
    assert client.pause("nobody")["success"] is False
    assert client.send_message("x", to=10**9)["code"] == "not_found"
    assert client.spawn("bad name", command=["true"])["code"] == "bad_request"
    assert client.wait("nobody", timeout=-1)["code"] == "bad_request"


def test_text_that_utf8_cannot_hold_is_refused_by_the_name_of_its_field(kernel: Kernel, client: AgentOSClient) -> None:
    path = kernel.place / "umlauts.txt"

    reply = client.write_file(str(path), "half \ud83d")

    assert (reply["code"], reply["error"].partition(":")[0]) == ("bad_request", "content")
    assert client.write_file(str(path), "äöü")["bytes_written"] == 6
    assert path.read_text() == "äöü"


def test_a_call_that_this_kernel_has_not_is_told_so(client: AgentOSClient) -> None:
    assert client.request(Op.WORLD_CREATE, {})["code"] == "unknown_call"


def test_any_call_can_be_made_by_number(client: AgentOSClient) -> None:
    assert client.request(Op.RECV, {"max": 1, "timeout": None})["count"] == 0
    assert json.loads(client.call(0x99))["code"] == "unknown_call"


@pytest.mark.parametrize("size", [(1 << 20) + 1, 4 << 20])
def test_a_message_that_is_too_large_is_told_and_the_next_call_works(client: AgentOSClient, size: int) -> None:
    with pytest.raises(ConnectionFailed, match="at most 1048576 bytes"):
        client.send_message("x" * size, to=1)

    assert client.echo("fine") == "fine"


def test_a_body_over_max_payload_is_told_and_the_next_call_works(client: AgentOSClient) -> None:
    with pytest.raises(ConnectionFailed, match="at most 16777216 bytes"):
        client.echo(b"x" * (17 << 20))

    assert client.echo("fine") == "fine"


def test_a_body_of_16_mib_comes_back(client: AgentOSClient) -> None:
    assert client.call(Op.NOOP, b"x" * (16 << 20)) == b"x" * (16 << 20)


def test_the_socket_is_found_in_the_order_of_the_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTOS_SOCKET", "/told")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_socket() == AgentOSClient().socket_path == "/told"
    assert AgentOSClient("/argument").socket_path == "/argument"

    monkeypatch.delenv("AGENTOS_SOCKET")
    (tmp_path / "agentos.toml").write_text("[kernel]\n")
    monkeypatch.chdir(tmp_path)
    name = project_id(str(tmp_path / "agentos.toml"))
    assert default_socket() == f"{tmp_path}/agentos/{name}.sock"

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket() == f"/tmp/agentos-{os.geteuid()}/{name}.sock"


def test_an_agent_finds_its_kernel_without_being_told(kernel: Kernel, client: AgentOSClient) -> None:
    script = kernel.place / "finds.py"
    script.write_text(
        "from agentos_sdk import AgentOSClient\n"
        "with AgentOSClient() as kernel:\n"
        "    print(kernel.hello()['name'], flush=True)\n"
        "    kernel.recv_messages(timeout=1000)\n"
    )
    client.spawn("finder", str(script), ready="hello")

    first = next(iter(client.follow_logs("finder")))

    assert first["lines"][0]["text"] == "finder"
    assert client.kill("finder")


def test_several_threads_worth_of_clients_do_not_meet(kernel: Kernel) -> None:
    clients = [kernel.client() for _ in range(20)]

    ids = {client.hello()["agent_id"] for client in clients}

    assert len(ids) == 20
    for client in clients:
        client.disconnect()


def test_nothing_of_the_client_outlives_with(kernel: Kernel) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(CallError), kernel.client() as client:
            next(client.follow_logs("nobody"))

    assert len(os.listdir("/proc/self/fd")) == before
