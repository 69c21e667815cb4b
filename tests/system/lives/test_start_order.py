"""``required`` and ``after``: what the kernel waits for, and who begins when."""

from pathlib import Path

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, listens, until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state
from tests.system.lives.test_containers import BAD, IN_ORDER, QUICK, SLEEPS, child, group, member, states

REQUIRED = "required = true"


def after(*names: str) -> str:
    return f"after = {list(names)}".replace("'", '"')


def order_of_starts(kernel: Kernel) -> list[str]:
    return [line.split("| ")[1].split(":")[0] for line in kernel.lines if ": running" in line]


def test_an_agent_begins_when_those_before_it_are_up_have_ended_or_were_given_up(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        child("last", SLEEPS, after("job", "team", "bad"))
        + child("job", '["true"]', 'restart = "temporary"')
        + group("team", member("a") + member("b"), IN_ORDER, after("first"))
        + child("bad", BAD, QUICK)
        + child("first")
        + child("beside")
    )
    with kernel.client() as client:
        kernel.wait_line("last: running")

        order = order_of_starts(kernel)
        assert order.index("first") < order.index("a") < order.index("b") < order.index("last")
        assert order.index("beside") < order.index("last")
        assert states(client)["bad"] == "failed"
        began = next(number for number, line in enumerate(kernel.lines) if "last: running" in line)
        assert any("bad: given up" in line for line in kernel.lines[:began])


@pytest.mark.usefixtures("kernels")
def test_an_agent_that_waits_for_another_can_be_stopped_and_started(tmp_path: Path) -> None:
    fine = tmp_path / "fine"
    program = f'["sh", "-c", "test -e {fine} && exec sleep 1000"]'
    forever = 'max_restarts = "unlimited"\nbackoff = { min = 0.5, max = 1 }\nsandboxed = false'
    kernel = Kernel(child("db", program, forever) + child("web", SLEEPS, after("db")) + child("beside"))
    try:
        kernel.wait_line("db: exit status 1")
        with kernel.client() as client:
            in_state(client, "beside", "running")
            assert states(client)["web"] == "starting"
            assert client.kill("web")
            assert states(client)["web"] == "stopped"

            fine.touch()
            in_state(client, "db", "running")
            assert client.start("web")["agents"] == [{"name": "web", "state": "running"}]
        kernel.stop()
    finally:
        kernel.clean_up()


@pytest.mark.usefixtures("kernels")
def test_the_kernel_is_ready_when_all_required_agents_are_up(tmp_path: Path) -> None:
    """One of them that fails later is an agent like others."""
    fine = tmp_path / "fine"
    program = f'["sh", "-c", "test -e {fine} && exec sleep 1000"]'
    often = "max_restarts = 1000\nrestart_window = 1000\nbackoff = { max = 0.2 }\nsandboxed = false"
    jobs = {"job": '["true"]', "later": '["sh", "-c", "sleep 1; exit 3"]'}
    kernel = Kernel(
        child("db", program, REQUIRED, often)
        + "".join(child(name, job, REQUIRED, 'restart = "temporary"') for name, job in jobs.items())
    )
    try:
        until(lambda: kernel.said.count("db: exit status 1") > 2, "its start was tried again")
        assert listens(kernel.socket)
        assert "ready, listening" not in kernel.said

        fine.touch()

        kernel.wait_ready()
        with kernel.client() as client:
            assert client.wait("later", timeout=PATIENCE)["exit_code"] == 3
            assert states(client, "db", "later") == {"db": "running", "later": "exited"}
        kernel.stop()
    finally:
        kernel.clean_up()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((BAD, QUICK), "db is required, and it was given up (exit status 5)"),
        ((SLEEPS, 'ready = "hello"', 'start_timeout = "2s"'), "db is required, and it wasn't up within 2 s (it never"),
        ((BAD, 'restart = "temporary"'), "db is required, and it was given up (exit status 5)"),
    ],
    ids=["given up", "late", "failed job"],
)
@pytest.mark.usefixtures("kernels")
def test_a_required_agent_that_does_not_come_up_ends_the_kernel(lines: tuple[str, ...], why: str) -> None:
    kernel = Kernel(child("db", *lines, REQUIRED) + child("beside"))
    try:
        assert kernel.wait_end() == 1
        assert why.partition(" (")[0] in kernel.said
        assert "ready, listening" not in kernel.said
        assert "beside: stopped" in kernel.said or "beside: running" not in kernel.said
    finally:
        kernel.clean_up()
