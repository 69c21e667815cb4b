"""The blocking client where there is no kernel, or no more: always a ConnectionFailed that says the way out."""

import os
import socket
import threading

import pytest

from agentos_sdk import AgentOSClient, ConnectionFailed
from tests.conftest import OwnKernel
from tests.sdk.impostors import listening, saying, short_directory, silent, somebody_else_listening
from tests.support.kernel import Kernel
from tests.support.wire import NOOP, frame, header


def trouble(path: str, timeout: float | None = 5) -> str:
    """What an echo there fails with."""
    client = AgentOSClient(path, timeout)
    with pytest.raises(ConnectionFailed) as caught:
        client.echo("hello")
    assert client._socket is None, "the broken connection was kept"
    return str(caught.value)


def test_a_missing_socket_is_reported_with_how_to_start_a_kernel() -> None:
    with short_directory() as place:
        assert trouble(f"{place}/none") == f"no kernel at {place}/none: start one with `agentos run`"


def test_a_socket_without_a_listener_is_reported_with_how_to_start_a_kernel() -> None:
    with short_directory() as place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
            stale.bind(f"{place}/stale")

        assert trouble(f"{place}/stale") == f"no kernel at {place}/stale: start one with `agentos run`"


def test_where_there_is_no_socket_but_a_file() -> None:
    with short_directory() as place:
        (place / "file").write_text("I am a file")
        (place / "directory").mkdir()

        for name in ("file", "directory"):
            assert str(place / name) in trouble(str(place / name))


def test_where_the_path_is_too_long_for_a_socket() -> None:
    assert "x" * 200 in trouble("/tmp/" + "x" * 200)


def test_where_the_path_is_no_path() -> None:
    assert trouble("/tmp/a\0b")


def test_where_one_may_not_go() -> None:
    if os.geteuid() == 0:
        pytest.skip("root may go everywhere")
    with short_directory() as place:
        place.chmod(0)
        try:
            assert "ermission" in trouble(f"{place}/s")
        finally:
            place.chmod(0o700)


def test_a_socket_that_another_user_made_first_is_reported_with_the_way_around_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can make a socket of another uid")
    with somebody_else_listening(uid=65534) as path:
        said = trouble(path)

    assert "uid 65534" in said
    assert "--socket" in said


def test_a_directory_of_ones_own_needs_no_such_check() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can make a socket of another uid")
    with somebody_else_listening(uid=65534) as path:
        os.chmod(os.path.dirname(path), 0o755)
        client = AgentOSClient(path)
        assert client.connect()
        client.disconnect()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 17, b"\xff" * 1000])
def test_where_something_answers_that_is_no_kernel(answer: bytes) -> None:
    with listening(saying(answer)) as path:
        assert "no AgentOS kernel" in trouble(path)


@pytest.mark.parametrize("answer", [b"", b"T", frame(NOOP, b"hello")[:10], frame(NOOP, b"hello")[:20]])
def test_where_it_hangs_up_in_the_middle_of_the_reply(answer: bytes) -> None:
    with listening(saying(answer)) as path:
        assert "broke" in trouble(path)


def test_where_it_promises_more_than_a_kernel_ever_sends() -> None:
    with listening(saying(header(NOOP, 1 << 62))) as path:
        assert path in trouble(path)


def test_where_a_reply_is_another_calls() -> None:
    refusal = frame(0x21, {"success": False, "error": "no room for you", "code": "busy"})
    with listening(saying(refusal)) as path:
        assert "no room for you" in trouble(path)


@pytest.mark.parametrize("body", [b"not json", b"\xff", b""])
def test_where_a_reply_is_no_json(body: bytes) -> None:
    with (
        listening(saying(frame(0x16, body))) as path,
        pytest.raises(ConnectionFailed),
        AgentOSClient(path, 5) as client,
    ):
        client.tree()


def test_a_kernel_that_does_not_answer_in_time_is_reported() -> None:
    with listening(silent) as path:
        assert "0.2 s" in trouble(path, timeout=0.2)


def test_following_logs_where_it_hangs_up() -> None:
    with listening(saying(b"")) as path, pytest.raises(ConnectionFailed):
        next(AgentOSClient(path, 5).follow_logs("a"))


def test_what_a_killed_kernel_breaks_and_that_the_next_one_is_found(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    kernel.spawn("speaker", ["sh", "-c", "echo hello; sleep 1000"])
    pages, client, waiting = kernel.client().follow_logs("speaker"), kernel.client(), kernel.client()
    assert next(pages)["lines"][0]["text"] == "hello"
    assert client.echo("before") == "before"
    waiting.connect()
    threading.Timer(1, kernel.process.kill).start()

    with pytest.raises(ConnectionFailed, match="broke"):
        waiting.recv_messages(timeout=1000)
    with pytest.raises(ConnectionFailed):
        next(pages)
    kernel.kill()
    with pytest.raises(ConnectionFailed):
        client.echo("between")
    assert "start one with" in trouble(kernel.socket)
    kernel.start_again()

    assert client.echo("after") == "after"
    client.disconnect()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e308, 10.0**30, -100.0], ids=str)
def test_a_time_that_no_socket_can_wait_is_judged_by_the_kernel(kernel: Kernel, seconds: float) -> None:
    with kernel.client(timeout=5) as client:
        replies = [client.exec("true", timeout=seconds), client.http("http://127.0.0.1:1/", timeout=seconds)]
        assert client.echo("still there") == "still there"

    assert [reply["code"] for reply in replies] == ["bad_request"] * 2
