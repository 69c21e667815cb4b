"""A kernel that is killed leaves nothing at all, and neither does one that is stopped; its zygote may die alone."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, marked, until
from tests.support.wire import PATIENCE
from tests.system.agents import ask, info, known, relay, up, write, written
from tests.system.jails import birth_of, copies_of_zygotes, crippled, groups_left, loops_in, said, zygotes_of

SLEEP = ["sleep", "1000"]
DAEMON = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo on; exec sleep 1000"
BOMB = "import os, time\nprint('on', flush=True)\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)\n"


class Traces:
    """What could be left of a kernel, looked for from outside."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.pid, self.run_id = kernel, kernel.pid, kernel.run_id
        self._birth = birth_of(kernel.pid)

    def left(self) -> list[object]:
        place = self.kernel.place
        mounts = Path("/proc/mounts").read_text().splitlines()
        return [
            *marked(f"AGENTOS_RUN_ID={self.run_id}"),
            *self.groups(),
            *loops_in(place),
            *[line for line in mounts if str(place) in line],
            *[name for name in os.listdir(place) if name.startswith("agentos-")],
            *copies_of_zygotes(self.pid),
        ]

    def groups(self) -> list[str]:
        return groups_left(self.pid, self._birth)

    def wait_gone(self) -> None:
        """Wait until nothing is left; fails with what is left in the end."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left(), "nothing is left")
        assert self.left() == []


def populate(kernel: Kernel, client: AgentOSClient) -> None:
    """Agents of all kinds: nested, with files that are kept, without a jail, with daemons, paused, being born."""
    boss = relay(kernel, client, "boss")
    up(ask(client, boss, "spawn", name="child", command=SLEEP))
    up(client.spawn("keeper", command=SLEEP, workspace="keep"))
    up(client.spawn("walled-daemon", command=["sh", "-c", DAEMON]))
    up(client.spawn("bare-daemon", command=["sh", "-c", DAEMON], isolation="none"))
    written(client, "bare-daemon", "on")
    up(client.spawn("online", command=SLEEP, network=True))
    up(client.spawn("paused", command=SLEEP))
    assert client.pause("paused")["paused"]


def test_a_killed_kernel_leaves_nothing_at_all(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    with kernel.client() as client:
        populate(kernel, client)
        until(lambda: len(traces.left()) > 10, "there is much to be left")

    kernel.kill()

    traces.wait_gone()


def test_a_stopped_kernel_leaves_nothing_either(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    with kernel.client() as client:
        populate(kernel, client)

    kernel.stop()

    assert not traces.left()


def test_nothing_is_left_of_agents_that_were_being_born(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    wires = [kernel.connect() for _ in range(12)]
    for number, wire in enumerate(wires):
        wire.send(
            0x10, {"name": f"agent-{number}", "command": SLEEP, "workspace": "keep" if number % 4 == 0 else "tmp"}
        )
    until(lambda: marked(f"AGENTOS_RUN_ID={kernel.run_id}"), "one has begun")

    kernel.kill()

    traces.wait_gone()
    for wire in wires:
        wire.close()


def test_nothing_is_left_of_a_fork_bomb(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    with kernel.client() as client:
        up(client.spawn("bomb", write(kernel, "bomb.py", BOMB), limits={"max_pids": 40}))

    kernel.kill()

    traces.wait_gone()


@pytest.mark.usefixtures("kernels")
def test_without_control_groups_nothing_is_left_either() -> None:
    with crippled("--hide", "/sys/fs/cgroup") as kernel:
        traces = Traces(kernel)
        with kernel.client() as client:
            populate(kernel, client)

        kernel.kill()

        traces.wait_gone()


def test_what_it_was_not_told_of_stays(own_kernel: OwnKernel, tmp_path: Path) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("here")
    runtime = next(kernel.place / name for name in os.listdir(kernel.place) if name.startswith("agentos-"))
    (runtime / "link").symlink_to(target)
    (runtime / "also").mkdir()
    (runtime / "also" / "file-link").symlink_to(target / "file")
    with kernel.client() as client:
        said(client, kernel, "writer", "open('kept', 'w').write('this'); print(1, flush=True)", workspace="keep")

    kernel.kill()

    traces.wait_gone()
    assert (target / "file").read_text() == "here"
    assert os.listdir(kernel.state_dir / "workspaces")


def test_a_zygote_that_is_killed_is_replaced_and_takes_no_agent_with_it(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    with kernel.client() as client:
        boss = relay(kernel, client, "boss")
        [former] = zygotes_of(kernel.pid)

        os.kill(former, signal.SIGKILL)

        up(client.spawn("after", command=SLEEP))
        assert ask(client, boss, "echo", message="still here") == "still here"
        [present] = zygotes_of(kernel.pid)
        assert present != former
    kernel.kill()  # the new one knows what the old one did
    traces.wait_gone()


def test_what_remains_when_both_are_killed_goes_with_the_next_start(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    traces = Traces(kernel)
    with kernel.client() as client:
        populate(kernel, client)
        [zygote] = zygotes_of(kernel.pid)
    os.kill(zygote, signal.SIGSTOP)  # so that it can't be quicker
    kernel.process.kill()
    os.kill(zygote, signal.SIGKILL)
    kernel.wait_end()
    runtime = {name for name in os.listdir(kernel.place) if name.startswith("agentos-")}
    assert runtime

    kernel.start_again()

    assert runtime.isdisjoint(os.listdir(kernel.place))
    until(lambda: not traces.groups(), "its control groups are removed")
    until(lambda: not marked(f"AGENTOS_RUN_ID={traces.run_id}"), "its processes have ended")
    kernel.stop()


def test_the_next_kernel_may_start_at_once(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    for _ in range(2):
        traces = Traces(kernel)
        with kernel.client() as client:
            up(client.spawn("agent", command=SLEEP, workspace="keep"))
        kernel.process.kill()
        kernel.process.wait()
        kernel.start_again()
        assert not traces.groups()
    kernel.stop()


def test_an_agent_is_gone_with_all_its_own_before_wait_answers(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("daemon", command=["sh", "-c", DAEMON]))
    pid = known(client, "daemon")
    agent_id = info(client, "daemon")["id"]
    until(lambda: len(kernel.processes_of_agent(agent_id)) == 5, "it has left four behind")

    os.kill(pid, signal.SIGKILL)
    client.wait("daemon", timeout=PATIENCE)

    assert not kernel.processes_of_agent(agent_id)
