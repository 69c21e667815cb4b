"""A client that gave rights away stays a guest, whatever becomes of its connections."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.calls.connection import Hello
from agentos_sdk.errors import AlreadyExists, BadRequest, Busy, CallError, ConnectionFailed, PermissionDenied
from agentos_sdk.frames import HEADER
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.sdk.impostors import Answer, listening
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE, frame

STREAMS: list[Callable[[AgentOSClient], Iterator[object]]] = [
    lambda client: iter(client.exec_stream("id")),
    lambda client: iter(client.think_stream("Why?")),
    lambda client: client.follow_logs("who-was-never-there"),
]


def rights(client: AgentOSClient) -> object:
    return client.get_permissions()["permissions"]["level"]


# -- Who is a guest from the beginning ---------------------------------------------------------------------------------


def test_a_guest_has_its_name_and_its_level_from_the_first_call_on(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, name="visitor", level="readonly") as client:
        assert client.hello()["name"] == "visitor"
        assert rights(client) == "readonly"
        assert client.exec("id")["code"] == "permission_denied"


def test_a_guest_may_do_what_a_set_of_its_own_grants(kernel: Kernel) -> None:
    (kernel.place / "in.txt").write_text("read me")
    (kernel.place / "other.txt").write_text("nothing for you")
    given = {"level": "minimal", "allow": {"calls": ["READ"], "read": [f"{kernel.place}/in.txt"]}}

    with AgentOSClient(kernel.socket, PATIENCE, permissions=given) as client:
        assert client.read_file(f"{kernel.place}/in.txt")["content"] == "read me"
        assert client.read_file(f"{kernel.place}/other.txt")["code"] == "permission_denied"


def test_a_name_alone_leaves_it_the_level_standard(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, name="plain") as client:
        assert rights(client) == "standard"


@pytest.mark.parametrize("begin", STREAMS)
def test_a_stream_of_a_guests_has_no_more_rights_than_itself(
    kernel: Kernel, begin: Callable[[AgentOSClient], Iterator[object]]
) -> None:
    client = AgentOSClient(kernel.socket, PATIENCE, level="minimal")  # which hasn't connected yet

    with pytest.raises(PermissionDenied, match="level minimal"):
        next(begin(client))


def test_a_streamed_command_of_a_guests_runs_in_a_jail_as_its_others_do(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, name="streamer", level="sandboxed") as client:
        told = client.exec("pwd; id -un")
        streamed = "".join(part["text"] for part in client.exec_stream("pwd; id -un"))

    assert told["stdout"] == streamed
    assert streamed == "/workspace\nagent\n"


def test_streams_of_a_guests_leave_it_its_kept_mailbox(kernel: Kernel) -> None:
    with (
        kernel.client() as operator,
        AgentOSClient(kernel.socket, PATIENCE, name="keeper", level="sandboxed", mailbox="kept") as client,
    ):
        assert "".join(part["text"] for part in client.exec_stream("echo done")) == "done\n"
        assert operator.send_message("hello", to_name="keeper")["success"]
        assert client.recv_messages()["count"] == 1
        with pytest.raises(Busy, match="another connection of the guest 'keeper'"):
            AgentOSClient(kernel.socket, PATIENCE, name="keeper", mailbox="kept").connect()


def test_a_guest_whose_connection_broke_comes_back_as_one(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, name="clumsy", level="sandboxed") as client:
        with pytest.raises(ConnectionFailed, match="at most"):
            client.write_file("x", "x" * (17 << 20))

        assert client.hello()["name"] == "clumsy"
        assert rights(client) == "sandboxed"


def test_a_guest_that_said_goodbye_comes_back_as_one(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, level="minimal") as client:
        client.exit()
        assert rights(client) == "minimal"
        client.disconnect()
        assert rights(client) == "minimal"


def test_a_guest_of_a_kernel_that_was_started_anew_is_a_guest_there(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    client = AgentOSClient(kernel.socket, PATIENCE, name="patient", level="readonly")
    assert rights(client) == "readonly"

    kernel.kill()
    with pytest.raises(ConnectionFailed):
        client.hello()
    kernel.start_again()

    assert rights(client) == "readonly"
    with pytest.raises(PermissionDenied):
        next(iter(client.exec_stream("id")))
    client.disconnect()


def test_a_guest_whose_set_is_gone_from_the_file_is_refused_and_no_operator(own_kernel: OwnKernel) -> None:
    kernel = own_kernel('[permissions.visitors]\nlevel = "readonly"\n')
    client = AgentOSClient(kernel.socket, PATIENCE, level="visitors")
    assert client.exec("id")["code"] == "permission_denied"
    client.disconnect()

    kernel.kill()
    (kernel.place / "agentos.toml").write_text("# no sets\n")
    kernel.start_again()

    for _ in range(2):
        with pytest.raises(BadRequest, match="visitors"):
            client.exec("id")
        with pytest.raises(BadRequest, match="visitors"):
            next(iter(client.exec_stream("id")))


def test_a_later_change_to_a_set_does_not_matter_to_the_client_that_was_given_it(kernel: Kernel) -> None:
    given = {"level": "minimal"}
    with AgentOSClient(kernel.socket, PATIENCE, permissions=given) as client:
        given["level"] = "unrestricted"
        client.disconnect()
        assert rights(client) == "minimal"


# -- Who is refused ----------------------------------------------------------------------------------------------------


def test_a_guest_that_is_refused_is_told_why_and_has_no_connection(kernel: Kernel) -> None:
    kernel.spawn("somebody")
    before = len(os.listdir("/proc/self/fd"))

    taken = AgentOSClient(kernel.socket, PATIENCE, name="somebody")
    for attempt in (taken.connect, taken.list_agents, STREAMS[0](taken).__next__):
        with pytest.raises(AlreadyExists, match="'somebody' is an agent"):
            attempt()
    for wrong in ({"level": "nonsense"}, {"permissions": {"leval": "minimal"}}, {"name": ""}):
        with pytest.raises(BadRequest), AgentOSClient(kernel.socket, PATIENCE, **wrong):
            pass

    assert len(os.listdir("/proc/self/fd")) == before


def test_an_agent_that_would_be_a_guest_is_refused(kernel: Kernel) -> None:
    agent = kernel.spawn("no-guest")

    with pytest.raises(PermissionDenied, match="operator's connection"):
        AgentOSClient(str(kernel.runtime / f"{agent}.sock"), PATIENCE, level="minimal").connect()


def refusing(heard: list[int], answer: bytes) -> Answer:
    """Answers every frame alike; ``heard`` are their opcodes."""

    def serve(connection: socket.socket) -> None:
        while header := connection.recv(HEADER.size, socket.MSG_WAITALL):
            _, _, op, length = HEADER.unpack(header)
            connection.recv(length, socket.MSG_WAITALL)
            heard.append(op)
            connection.sendall(answer)

    return serve


REFUSALS = {
    "bad_request": frame(Op.HELLO, {"success": False, "error": "no", "code": "bad_request"}),
    "another call's": frame(Op.LIST, {"success": False, "error": "no room", "code": "busy"}),
    "no reply to HELLO": frame(Op.LIST, {"success": True}),
    "no JSON": frame(Op.HELLO, b"welcome"),
    "no frame": b"\0" * 40,
}


@each_row("begin", [lambda client: iter(client.list_agents()), *STREAMS])
@each_row("answer", REFUSALS.values(), ids=REFUSALS)
def test_nothing_but_hello_is_sent_to_a_kernel_that_does_not_let_a_guest_in(
    answer: bytes, begin: Callable[[AgentOSClient], Iterator[object]]
) -> None:
    heard: list[int] = []
    with listening(refusing(heard, answer)) as path, pytest.raises((CallError, ConnectionFailed)):
        next(begin(AgentOSClient(path, PATIENCE, level="minimal")))

    assert heard == [Op.HELLO]


# -- Who becomes one later ---------------------------------------------------------------------------------------------


def test_what_a_client_gave_away_it_does_not_get_back_by_connecting_again(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert rights(client) == "unrestricted"
        assert client.hello(as_="ada", level="minimal")["name"] == "ada"
        client.disconnect()
        assert rights(client) == "minimal"
        client.exit()
        assert client.hello()["name"] == "ada"


def test_what_a_client_gave_away_it_does_not_get_back_by_a_call_that_takes_too_long(kernel: Kernel) -> None:
    with kernel.client(timeout=0.5) as client:
        client.request(Op.HELLO, {"permissions": {"allow": {"calls": ["WAIT"], "agents": ["*"]}}})
        sleeper = kernel.spawn("sleeper")
        with pytest.raises(ConnectionFailed, match="gave no reply"):
            client.request(Op.WAIT, {"id": sleeper})
        assert client.request(Op.LIST, {})["code"] == "permission_denied"


@pytest.mark.parametrize("begin", STREAMS)
def test_what_a_client_gave_away_it_does_not_get_back_by_a_streamed_call(
    kernel: Kernel, begin: Callable[[AgentOSClient], Iterator[object]]
) -> None:
    with kernel.client() as client:
        client.hello(level="minimal")
        with pytest.raises(PermissionDenied):
            next(begin(client))


def test_what_was_given_away_in_bytes_of_ones_own_is_remembered_too(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.call(Op.HELLO, rb'{"\u006cevel": "minimal"}')
        client.disconnect()
        assert rights(client) == "minimal"


def test_a_guest_that_gives_away_more_keeps_that_to_itself_too(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, PATIENCE, name="shrinking", level="standard") as client:
        for _ in range(3):
            assert client.hello(level="minimal")["success"]
        assert client.hello(level="unrestricted")["success"]
        client.disconnect()
        assert client.hello()["name"] == "shrinking"
        assert client.request(Op.LIST, {})["code"] == "permission_denied"


def test_a_hello_that_is_refused_gives_nothing_away(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert client.hello(level="nonsense")["code"] == "bad_request"
        client.disconnect()
        assert rights(client) == "unrestricted"


# -- The Trio client ---------------------------------------------------------------------------------------------------


async def test_a_guest_of_the_trio_client_has_no_more_in_calls_and_streams(kernel: Kernel) -> None:
    async with connect(kernel.socket, name="async-visitor", level="minimal") as client:
        assert client.name == "async-visitor"
        assert (await client.get_permissions())["level"] == "minimal"
        with pytest.raises(PermissionDenied):
            await client.list_agents()
        with pytest.raises(PermissionDenied):
            async with client.exec_stream("id") as parts:
                await anext(parts)


async def test_a_guest_of_the_trio_client_can_give_away_more(kernel: Kernel) -> None:
    async with connect(kernel.socket, permissions={"level": "readonly"}) as client:
        await client.list_agents()
        await client.call(Hello(protocol=2, level="minimal"))
        with pytest.raises(PermissionDenied):
            await client.list_agents()


async def test_a_guest_of_the_trio_client_that_is_refused_is_told_why(kernel: Kernel) -> None:
    with pytest.raises(BadRequest, match="nonsense"):
        async with connect(kernel.socket, level="nonsense"):
            pytest.fail("it was let in")
