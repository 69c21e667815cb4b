"""A kernel after one that was killed, or beside a database that isn't the last kernel's."""

import os

import pytest

from agentos.boot.last_run import read_record
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import RECV
from tests.system.agents import up
from tests.system.lives.test_containers import SLEEPS, child


def waits(kernel: Kernel) -> object:
    last = read_record(kernel.state_dir)
    return last is not None and last.doing.messages == 2 and last.doing.calls == 1 and last.doing.running == 2


def test_the_next_kernel_says_what_was_lost_with_one_that_was_killed(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(child("a") + child("b", SLEEPS, 'mailbox = "memory"'))
    with kernel.client() as client, kernel.connect_as(1) as agent:
        for _ in range(2):
            up(client.send_message("hello", to=2))
        agent.send(RECV, {"timeout": 60})
        until(lambda: waits(kernel), "the record says what goes on", show=lambda: read_record(kernel.state_dir))
    kernel.kill()
    kernel.start_again()

    text = kernel.wait_line("the last kernel was killed; at .* these ran: a, b; lost with it: 2 unread messages, 1 un")
    assert sum("the last kernel" in line for line in kernel.lines) == 1
    with kernel.client() as client:
        event = next(iter(client.follow_events(["KERNEL_KILLED"], since=0)))
        entries = up(client.get_audit_log(category="kernel"))["entries"]
        assert (event["data"]["agents"], event["data"]["messages"]) == (["a", "b"], 2)
        assert [entry["about"] in text for entry in entries if entry["call"] == "KERNEL_KILLED"] == [True]

    kernel.stop()
    kernel.start_again()
    assert "the last kernel" not in kernel.said


def test_a_kernel_that_lacks_its_database_begins_only_if_it_is_told_to(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(child("a"))
    kernel.stop()
    os.unlink(kernel.state_dir / "agentos.db")

    for _ in range(2):
        with pytest.raises(AssertionError, match=r"agentos\.db: it is missing or empty.*--accept-lost-state"):
            kernel.start_again()
        assert kernel.wait_end() == 1

    kernel.options = ("--accept-lost-state",)
    kernel.start_again()
    with kernel.client() as client:
        first = client.inspect("a")["id"]
    kernel.stop()
    kernel.options = ()
    kernel.start_again()

    # An id that the lost database gave means nothing else afterwards.
    with kernel.client() as client:
        assert client.inspect("a")["id"] > first > 1_000_000_000
