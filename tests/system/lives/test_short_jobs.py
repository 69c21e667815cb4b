"""Programs that end at once, and terminals that are closed."""

import signal

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import in_state
from tests.system.lives.test_containers import QUICK, SLEEPS, child, states

DONE = '["sh", "-c", "echo done; exit 0"]'
UNREADY = 'ready = "hello"'  # which it never says: on a slow machine it would count as started after 200 ms


def test_a_job_that_is_done_at_once_is_no_failed_start_and_a_permanent_agent_is(own_kernel: OwnKernel) -> None:
    jobs = {"once": "temporary", "unless-failed": "transient"}
    kernel = own_kernel(
        child("steady")
        + "".join(child(name, DONE, UNREADY, f'restart = "{restart}"') for name, restart in jobs.items())
        + child("loops", DONE, UNREADY, QUICK)
    )
    with kernel.client() as client:
        assert states(client, "steady", *jobs) == {"steady": "running", **dict.fromkeys(jobs, "exited")}
        for job in jobs:
            assert client.wait(job, timeout=PATIENCE)["exit_code"] == 0
            assert client.logs(job)["lines"][0]["text"] == "done"
            assert client.send_message("hello", to_name=job)["code"] == "not_found"

        in_state(client, "loops", "failed")
        assert client.logs("loops")["lines"][-1]["text"].startswith("given up: 2 restarts in 60 s were needed")
        assert in_state(client, "steady", "running")["restarts"] == 0


@pytest.mark.usefixtures("kernels")
def test_a_closed_terminal_stops_the_kernel_in_order() -> None:
    kernel = Kernel(child("steady", SLEEPS), terminal=True)
    try:
        kernel.wait_ready()

        kernel.process.send_signal(signal.SIGHUP)

        assert kernel.wait_end() == 0
        assert "steady: stopped: killed by SIGTERM" in kernel.said
    finally:
        kernel.clean_up()
