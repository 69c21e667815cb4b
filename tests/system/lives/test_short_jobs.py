"""Programs that end at once, terminals that are closed, and letters to the dead."""

import signal

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import in_state

JOBS = """
[[supervisor.children]]
name = "steady"
command = ["sleep", "1000"]
[[supervisor.children]]
name = "job"
command = ["sh", "-c", "echo done; exit 0"]
restart = "{restart}"
ready = "hello"  # which it never says: on a slow machine it would count as started after 200 ms
"""


@pytest.mark.parametrize("restart", ["temporary", "transient"])
def test_a_declared_job_that_is_done_at_once_is_no_failed_start(own_kernel: OwnKernel, restart: str) -> None:
    kernel = own_kernel(JOBS.format(restart=restart))
    with kernel.client() as client:
        states = {agent["name"]: agent["state"] for agent in client.list_agents(all=True)}

        assert states == {"steady": "running", "job": "exited"}
        assert client.wait("job", timeout=PATIENCE)["exit_code"] == 0
        assert client.logs("job")["lines"][0]["text"] == "done"
        assert client.send_message("hello", to_name="job")["code"] == "not_found"


def test_a_permanent_agent_that_ends_at_once_is_a_failed_start(own_kernel: OwnKernel) -> None:
    with own_kernel(JOBS.format(restart="permanent")).client() as client:
        in_state(client, "job", "failed")

        assert client.logs("job")["lines"][-1]["text"].startswith("given up: 6 restarts in 60 s were needed")
        assert in_state(client, "steady", "running")["restarts"] == 0


@pytest.mark.usefixtures("kernels")
def test_a_closed_terminal_stops_the_kernel_in_order() -> None:
    kernel = Kernel(JOBS.format(restart="temporary"), terminal=True)
    try:
        kernel.wait_ready()

        kernel.process.send_signal(signal.SIGHUP)

        assert kernel.wait_end() == 0
        assert "steady: stopped: killed by SIGTERM" in kernel.said
    finally:
        kernel.clean_up()


@pytest.mark.parametrize("name", ["123", "kernel", "root", "spawned"])
def test_names_that_would_mislead_a_person_are_refused(own_kernel: OwnKernel, name: str) -> None:
    with own_kernel().client() as client:
        assert client.spawn(name, command=["sleep", "9"])["code"] in ("bad_request", "already_exists")
        assert client.register_name(name)["code"] in ("bad_request", "already_exists")


def test_max_restarts_has_an_end(own_kernel: OwnKernel) -> None:
    with own_kernel().client() as client:
        reply = client.spawn("x", command=["sleep", "9"], max_restarts=100_000_000, restart="permanent", backoff={})

        assert reply["code"] == "bad_request"
        assert "max_restarts" in reply["error"]
