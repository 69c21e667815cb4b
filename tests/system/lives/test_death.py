"""The end of the kernel: asked for, asked for twice, or by SIGKILL; and the next one in its place."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import (
    Kernel,
    Process,
    descendants,
    environment,
    is_zygote,
    killing_new_agents,
    listens,
    marked,
    until,
)
from tests.support.wire import PATIENCE
from tests.system.agents import STUBBORN, ask, relay, up, write, written

DAEMON = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo on; exec sleep 1000"


def test_no_agent_outlives_a_kernel_that_is_killed(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        boss = relay(kernel, client, "boss")
        up(ask(client, boss, "spawn", name="child", command=["sleep", "1000"]))
        up(client.spawn("deaf", write(kernel, "deaf.py", STUBBORN)))
    run = f"AGENTOS_RUN_ID={kernel.run_id}"
    until(lambda: len(marked(run)) == 3, "all of them run")

    kernel.kill()

    until(lambda: not marked(run), "no agent is left")


def test_agents_whose_kernel_dies_while_they_start_die_too(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    run = f"AGENTOS_RUN_ID={kernel.run_id}"
    wires = [kernel.connect() for _ in range(10)]
    for number, wire in enumerate(wires):
        wire.send(0x10, {"name": f"agent-{number}", "command": ["sleep", "1000"]})
    until(lambda: marked(run), "one has begun")

    kernel.kill()

    until(lambda: not marked(run), "none is left")
    for wire in wires:
        wire.close()


SLIPPERY = """
import os, signal, subprocess, sys, time
def away():
    os.setsid()
    if os.fork():
        os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
nameless = subprocess.Popen(["/usr/bin/sleep", "1000"], env={}, preexec_fn=away, close_fds=True)
stopped = subprocess.Popen(["/usr/bin/sleep", "1000"], preexec_fn=os.setsid)
os.kill(stopped.pid, signal.SIGSTOP)
if os.fork() == 0:
    away()
    os.closerange(0, 100)
    time.sleep(1000)
print("all away", flush=True)
time.sleep(1000)
"""
"""Does what daemons do to outlive whoever started them, in three ways."""


def living(family: Sequence[Process]) -> Sequence[Process]:
    return [one for one in family if one.lives]


def test_nothing_of_a_jailed_agent_outlives_a_killed_kernel_whatever_it_did(own_kernel: OwnKernel) -> None:
    """Nor if it is paused."""
    kernel = own_kernel()
    with kernel.client() as client:
        for name in ("slippery", "paused"):
            up(client.spawn(name, write(kernel, "slippery.py", SLIPPERY)))
            written(client, name, "all away")
        until(lambda: len(living(kernel.family)) == 10, "four programs each and their PID 1")
        up(client.pause("paused"))
    family = descendants(kernel.pid)

    kernel.kill()

    until(lambda: not living(family), "nothing is left")


def test_nothing_of_a_jailed_agent_outlives_its_end_whatever_it_did(kernel: Kernel) -> None:
    with kernel.client() as client:
        agent = up(client.spawn("slippery", write(kernel, "slippery.py", SLIPPERY)))
        written(client, "slippery", "all away")
        until(lambda: len(living(kernel.family)) == 5, "four programs and their PID 1")
        family = kernel.family

        os.kill(agent["pid"], signal.SIGKILL)

        assert client.wait("slippery", timeout=PATIENCE)["signal"] == signal.SIGKILL
        assert not living(family)
        until(lambda: not kernel.family, "no zombie is left either")


def test_what_escaped_ends_with_a_killed_kernel_and_its_stale_socket_is_replaced_by_a_private_one(
    own_kernel: OwnKernel,
) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        up(client.spawn("daemon", command=["sh", "-c", DAEMON], sandboxed=False))
        written(client, "daemon", "on")
    run = f"AGENTOS_RUN_ID={kernel.run_id}"
    until(lambda: len(marked(run)) == 5, "it has left four behind")

    kernel.kill()

    until(lambda: not marked(run), "its zygote ends them")
    assert os.path.exists(kernel.socket)
    kernel.start_again()
    assert os.stat(kernel.socket).st_mode & 0o777 == 0o600
    assert len([name for name in os.listdir(kernel.place) if name.startswith("agentos-")]) == 1
    kernel.stop()


@pytest.mark.parametrize("sandboxed", [True, False])
def test_orphans_end_with_their_agent_and_no_zombie_stays(kernel: Kernel, sandboxed: bool) -> None:
    with kernel.client() as client:
        agent = up(client.spawn("daemon", command=["sh", "-c", DAEMON], sandboxed=sandboxed))

        def its() -> Sequence[int]:
            return kernel.processes_of_agent(agent["id"])

        until(lambda: len(its()) == 5, "it has left four behind")

        client.kill("daemon")

        until(lambda: not its(), "they ended with it")
        until(lambda: not children_of(kernel.pid), "and were reaped")
        if not sandboxed and not has_cgroups(kernel):  # otherwise nobody has to look for them
            kernel.wait_line("ended agents left processes behind, which were killed: ")


@pytest.mark.parametrize("sandboxed", [True, False])
def test_orphans_that_end_by_themselves_are_reaped(kernel: Kernel, sandboxed: bool) -> None:
    with kernel.client() as client:
        orphans = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.2 &); done; sleep 0.21"
        for number in range(4):
            client.spawn(f"brief-{number}", command=["sh", "-c", orphans], sandboxed=sandboxed)
        until(lambda: not children_of(kernel.pid), "agents and orphans are reaped")


def test_orphans_in_a_jail_are_reaped_by_its_pid_1(kernel: Kernel) -> None:
    with killing_new_agents(kernel), kernel.client() as client:
        orphans = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &); done; echo on; exec sleep 1000"
        up(client.spawn("parent", command=["sh", "-c", orphans]))
        written(client, "parent", "on")

        until(lambda: len(kernel.family) == 2, "the program and its PID 1 are left")


def has_cgroups(kernel: Kernel) -> bool:
    """Whether each agent has a control group of its own, with which all that it started is found and ended."""
    return "limits by cgroup" in kernel.wait_line("isolation standard: ")


def children_of(pid: int) -> list[int]:
    """The children of a kernel's, zombies too, but for what it makes its jails with."""
    found = [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
    return [child for child in found if not is_zygote(child)]


def test_a_kernel_whose_socket_was_removed_ends_with_all_orphans(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        up(client.spawn("daemon", command=["sh", "-c", DAEMON]))
        written(client, "daemon", "on")
    os.unlink(kernel.socket)

    kernel.stop()  # asserts that nobody is left


PATIENT = """
[[supervisor.children]]
name = "outer"
script = "deaf.py"
shutdown = "1h"
[[supervisor.children]]
name = "group"
type = "supervisor"
[[supervisor.children.children]]
name = "inner"
script = "deaf.py"
shutdown = "1h"
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("long")
def test_the_first_signal_drains_in_order_and_the_second_hurries(
    own_kernel: OwnKernel, tmp_path: Path, number: int
) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text(STUBBORN)
    patient = own_kernel(PATIENT.replace("deaf.py", str(deaf)))
    with patient.client() as client:
        up(client.spawn("mine", str(deaf), shutdown="infinity"))
        for name in ("outer", "inner", "mine"):
            written(client, name, "deaf now")
    patient.process.send_signal(number)
    patient.wait_line("stopping, agents first")
    began = time.monotonic()
    until(lambda: patient.process.poll() is not None or time.monotonic() > began + 0.5, "it waits")
    assert patient.process.poll() is None

    patient.process.send_signal(number)

    assert patient.wait_end() == 0
    assert [name for name in ("inner", "outer", "mine") if f"{name}: stopped: killed by SIGKILL" in patient.said] == [
        *("inner", "outer", "mine")
    ]
    assert patient.said.endswith("| stopped")


@pytest.mark.parametrize("seconds", [0.0005, 0.005, 0.02])
def test_any_number_of_signals_leaves_the_cleaning_up_to_its_end(own_kernel: OwnKernel, seconds: float) -> None:
    kernel = own_kernel()

    while kernel.process.poll() is None:
        kernel.process.send_signal(signal.SIGTERM)
        time.sleep(seconds)

    assert kernel.wait_end() == 0, kernel.said
    assert kernel.said.endswith("| stopped")


@pytest.mark.usefixtures("kernels")
def test_a_signal_at_the_first_moment_that_clients_can_connect_ends_it_in_order() -> None:
    kernel = Kernel('[[supervisor.children]]\nname = "slow"\ncommand = ["sleep", "1000"]\nready = "hello"\n')
    try:
        while not listens(kernel.socket):
            assert kernel.process.poll() is None, kernel.said
        kernel.process.send_signal(signal.SIGINT)

        assert kernel.wait_end() == 0, kernel.said
        assert "stopping, agents first" in kernel.said
        assert kernel.said.endswith("| stopped")
        assert not os.path.exists(kernel.socket)
    finally:
        kernel.clean_up()


def run_again(kernel: Kernel, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_agentos(["run", *arguments], kernel.place, environment(kernel.place))


def test_there_is_one_kernel_per_state_directory(kernel: Kernel) -> None:
    second = run_again(kernel, "--socket", f"{kernel.socket}2", "--state-dir", str(kernel.state_dir))

    assert second.returncode == 1
    assert f"{kernel.state_dir}: another kernel (pid {kernel.pid}) uses it" in second.stderr


def test_a_live_socket_is_not_taken_away(kernel: Kernel) -> None:
    second = run_again(kernel, "--socket", kernel.socket, "--state-dir", str(kernel.place / "other"))

    assert second.returncode == 1
    assert "a kernel is listening there already" in second.stderr
    assert kernel.answers()


@pytest.mark.parametrize("name", ["not there", "x" * 100])
def test_agents_find_their_socket_whatever_the_runtime_directory_is(
    own_kernel: OwnKernel, tmp_path: Path, name: str
) -> None:
    base = tmp_path / name
    if len(name) > 50:
        base.mkdir()
    kernel = own_kernel(None, {"XDG_RUNTIME_DIR": str(base), "TMPDIR": str(base)})
    with kernel.client() as client:
        assert relay(kernel, client, "agent")
