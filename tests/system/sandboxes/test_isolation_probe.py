"""A kernel answers calls before it knows which isolation layers work; agents start when it knows."""

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.kernel import PROBED, READY, Kernel, until
from tests.support.wire import LIST, NOOP, SPAWN
from tests.system.jails import zygotes_of


@pytest.fixture
def unprobed(kernels: None) -> Iterator[tuple[Kernel, int]]:
    """A ready kernel whose probe doesn't end, since the zygote is stopped; the zygote's pid."""
    for _ in range(20):  # a probe that has ended before we stop the zygote proves nothing
        kernel = Kernel()
        try:
            until(partial(zygotes_of, kernel.pid), "it has its zygote")
            [zygote] = zygotes_of(kernel.pid)
            kernel.wait_line(READY)
            os.kill(zygote, signal.SIGSTOP)
            with kernel.connect() as wire:
                for _ in range(1000):  # what the zygote has told before, the kernel has seen after these
                    wire.ask(NOOP)
            if not PROBED.search(kernel.said):
                yield kernel, zygote
                kernel.stop()
                return
            os.kill(zygote, signal.SIGCONT)  # or it holds the kernel's output open
        finally:
            kernel.clean_up()
    pytest.fail("each of twenty kernels knew its isolation too soon")


def test_a_kernel_answers_before_it_knows_its_isolation_and_an_agent_waits_for_that(
    unprobed: tuple[Kernel, int],
) -> None:
    kernel, zygote = unprobed
    with kernel.connect() as spawner, kernel.connect() as other:
        spawner.send(SPAWN, {"name": "waits", "command": ["sleep", "1000"]})
        until(lambda: [agent["name"] for agent in other.call(LIST)] == ["waits"], "the agent is known")

        assert other.ask(NOOP, b"served").body == b"served"
        assert other.call(LIST)[0]["state"] == "starting"
        assert not PROBED.search(kernel.said)

        os.kill(zygote, signal.SIGCONT)
        reply = spawner.receive().json
        assert reply["success"], reply
        assert reply["isolation"]["layers"]["pid_ns"]["active"]
        kernel.wait_line(PROBED)
