"""What agents write: bounded, tagged, never lost at the end, and never in anybody's way."""

import time

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.system.agents import has_full_log, info, lines, up


def said(client: AgentOSClient, name: str, script: str) -> list[dict[str, object]]:
    """All the lines of a shell script that has ended."""
    client.spawn(name, command=["sh", "-c", script])
    assert client.wait(name, timeout=PATIENCE)["success"]
    return [line for line in client.logs(name, tail=2000)["lines"] if line["stream"] != "kernel"]


def test_lines_are_tagged_with_their_stream(client: AgentOSClient) -> None:
    got = said(client, "tags", "echo out; echo err >&2")

    assert sorted((line["stream"], line["text"]) for line in got) == [("stderr", "err"), ("stdout", "out")]
    assert all(abs(float(str(line["at"])) - time.time()) < 60 for line in got)


@pytest.mark.parametrize("pause", ["true", "sleep 0.3"])
def test_what_is_written_right_before_the_end_is_not_lost(client: AgentOSClient, pause: str) -> None:
    got = said(client, f"last{len(pause)}", f"{pause}; seq 1 1500; printf 'no newline'")

    assert [line["text"] for line in got] == [*map(str, range(1, 1501)), "no newline"]


def test_bytes_that_are_no_text_do_no_harm(client: AgentOSClient) -> None:
    got = said(client, "bytes", r"printf 'a\377b\n\303'; sleep 0.3; printf '\274 cut in two\r\n\000\n\n'")

    assert [line["text"] for line in got] == ["a\ufffdb", "ü cut in two", "\0", ""]


def test_a_very_long_line_is_cut_and_none_of_it_is_lost(client: AgentOSClient) -> None:
    got = said(client, "long", "sleep 0.3; head -c 100000 /dev/zero | tr '\\0' x")

    assert "".join(str(line["text"]) for line in got) == "x" * 100_000
    assert {len(str(line["text"])) for line in got[:-1]} == {8192}


def test_only_the_last_lines_are_kept_and_the_gap_is_said(client: AgentOSClient) -> None:
    client.spawn("much", command=["sh", "-c", "seq 1 30000"])
    client.wait("much", timeout=PATIENCE)

    kept = client.logs("much", tail=2000)["lines"]

    assert len(kept) == 2000
    assert kept[-2]["text"] == "30000"


def test_tail_is_checked(client: AgentOSClient) -> None:
    up(client.spawn("tail", command=["sh", "-c", "seq 1 9; sleep 1000"]))
    until(lambda: len(lines(client, "tail")) == 9, "it has written")

    assert [line["text"] for line in client.logs("tail", tail=2)["lines"]] == ["8", "9"]
    assert client.logs("tail", tail=0)["lines"] == []
    assert client.logs("tail", tail=2001)["code"] == client.logs("tail", tail=-1)["code"] == "bad_request"


def test_what_another_process_still_writes_after_the_end_is_not_in_the_agents_log(client: AgentOSClient) -> None:
    up(client.spawn("leaver", command=["sh", "-c", "(setsid sh -c 'sleep 2; echo late' &); sleep 1"]))

    assert client.wait("leaver", timeout=PATIENCE)["exit_code"] == 0

    assert lines(client, "leaver") == []


@each_row("flood", ["exec yes", "exec yes ''", "yes >&2 & exec cat /dev/zero", "exec cat /dev/urandom"])
def test_a_flood_slows_no_other_caller_and_fills_nothing(kernel: Kernel, flood: str) -> None:
    with kernel.client() as client:
        before = kernel.rss  # which depends on what the process has imported that it is forked from
        up(client.spawn("flood", command=["sh", "-c", flood]))
        until(lambda: has_full_log(client, "flood"), "more has come than is kept")
        for number in range(100):
            assert client.echo(str(number)) == str(number)

        assert kernel.rss - before < 32 << 20
        assert client.kill("flood", grace=0)
        assert info(client, "flood")["state"] == "exited"


def test_the_kernels_own_lines_say_how_it_ended(kernel: Kernel, client: AgentOSClient) -> None:
    client.spawn("told", command=["sh", "-c", "sleep 1; exit 4"])
    client.wait("told", timeout=PATIENCE)

    assert [line["text"] for line in client.logs("told")["lines"] if line["stream"] == "kernel"] == [
        "ended: exit status 4"
    ]
