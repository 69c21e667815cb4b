"""What no command may do: run what nobody judged, outlive its call, learn what the kernel holds, hold anybody up.

On the host, where there is no wall around it; once with control groups, where this host has some, and once without.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import Busy
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, killing_new_agents, running, until
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.system.agents import up
from tests.system.calls.test_exec import guests
from tests.system.jails import crippled

SECRET = "sk-not-for-anybody"
Start = Callable[[], Kernel]
Isolation = Literal["none", "standard"]


@pytest.fixture(scope="module", params=["with groups", "without groups"])
def kernel(kernels: None, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Shadows the one that every module has: it holds a secret, and once it can make no control group."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("GEMINI_API_KEY", SECRET)
        patch.setenv("AGENTOS_ATTACKED", SECRET)
        patch.setenv("BASH_ENV", "/proc/self/environ")
        if request.param == "with groups":
            yield stack.enter_context(running())
        else:
            yield stack.enter_context(crippled("--hide", "/sys/fs/cgroup"))


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """The operator; the agents that the test leaves are killed."""
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected


# -- It doesn't run what nobody has judged -----------------------------------------------------------------------------

UNJUDGED = {
    "BASH_ENV": "/tmp/evil.sh",
    "ENV": "/tmp/evil.sh",
    "BASH_FUNC_ls%%": "() { echo evil; }",
    "BASH_FUNC_ls()": "() { echo evil; }",
    "SHELLOPTS": "xtrace",
    "BASHOPTS": "extdebug",
    "PS4": "$(echo evil >&2)",
    "CDPATH": "/tmp",
    "GLOBIGNORE": "*",
    "POSIXLY_CORRECT": "1",
    "IFS": "x",
}


@pytest.mark.usefixtures("any_user")
@each_row("name", UNJUDGED)
@each_row("command", ["ls /dev/null", ["bash", "-c", "ls /dev/null"]], ids=["line", "argv"])
def test_a_variable_that_bash_reads_as_code_is_not_taken(kernel: Kernel, name: str, command: str | list[str]) -> None:
    with kernel.client() as client:
        reply = client.exec(command, env={name: UNJUDGED[name]})

        assert (reply["success"], reply.get("code")) == (False, "bad_request")
        assert f"env.{name}" in reply["error"]


@pytest.mark.parametrize("isolation", ["none", "standard"])
def test_an_agents_own_environment_runs_nothing_before_a_line(
    client: AgentOSClient, kernel: Kernel, isolation: Isolation
) -> None:
    evil = kernel.place / "evil.sh"
    evil.write_text("echo evil; ls() { echo evil; }\n")
    own = {**UNJUDGED, "BASH_ENV": str(evil), "ENV": str(evil)}
    up(client.spawn("a", command=["sleep", "1000"], isolation=isolation, env=own))

    for command in ("set -x; ls /dev/null; unset x; env", ["bash", "-xc", "ls /dev/null; env"]):
        reply = up(client.exec(command, name="a"))
        assert "evil" not in reply["stdout"] + reply["stderr"], reply
        assert reply["stdout"].startswith("/dev/null\n")


def test_no_start_up_file_of_the_users_is_read(client: AgentOSClient, kernel: Kernel) -> None:
    for name in (".bashrc", ".bash_profile", ".profile", ".bash_login"):
        (kernel.place / name).write_text("echo evil\n")

    reply = up(client.exec("echo begun", env={"HOME": str(kernel.place)}))

    assert reply["stdout"] == "begun\n"


# -- It doesn't outlive its call ---------------------------------------------------------------------------------------

DAEMONS = {
    "setsid": "setsid sleep {0} & disown",
    "nohup": "nohup sleep {0} >/dev/null 2>&1 &",
    "double fork": "(setsid sh -c '(setsid sleep {0} &) &' &)",
    "without its environment": "(env -i setsid sh -c '(exec env -i setsid sleep {0}) &' &)",
    "a chain that goes on": "(env -i setsid bash -c 'f() {{ sleep 0.02; (f \"$@\" &) ; exec sleep {0}; }}; f' &)",
}


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("end", ["timeout", "its own end"])
def test_a_daemon_does_not_survive(client: AgentOSClient, daemon: str, end: str) -> None:
    number = "7601"
    wait = "sleep 0.1" if end == "its own end" else f"sleep {number}"
    timeout = PATIENCE if end == "its own end" else 0.4

    reply = up(client.exec(f"{DAEMONS[daemon].format(number)}\n{wait}", timeout=timeout))

    assert reply["timed_out"] == (end == "timeout")
    assert guests(f"sleep\0{number}") == []


@pytest.mark.parametrize("how", ["CANCEL", "hang-up"])
def test_a_withdrawn_command_leaves_no_process(kernel: Kernel, how: str) -> None:
    daemon = DAEMONS["without its environment"].format(7602)
    with kernel.connect() as wire:
        wire.send(Op.HELLO, {"protocol": 2})
        wire.receive()
        wire.send(Op.EXEC, {"command": f"{daemon}\ntrap '' TERM INT HUP; sleep 7602; sleep 7602"}, number=7)
        until(lambda: len(guests("sleep\x007602")) == 2, "the command runs, and its daemon")
        if how == "CANCEL":
            wire.send(Op.CANCEL, {"id": 7}, number=8)
            replies = {wire.receive().id: None for _ in range(2)}
            assert set(replies) == {7, 8}
            assert guests("sleep 7602") == []

    until(lambda: not guests("sleep 7602"), "nothing of it is left")


@pytest.mark.usefixtures("kernels")
def test_a_kernel_that_is_killed_leaves_no_process_of_a_command() -> None:
    for hidden in (False, True):
        with contextlib.ExitStack() as stack:
            options = ("--hide", "/sys/fs/cgroup") if hidden else ()
            kernel = stack.enter_context(crippled(*options) if hidden else running())
            with kernel.connect() as wire:
                daemon = DAEMONS["without its environment"].format(7603)
                wire.send(Op.EXEC, {"command": f"{daemon}\ntrap '' TERM INT HUP; sleep 7603; sleep 7603"})
                until(lambda: len(guests("sleep\x007603")) == 2, "the command runs, and its daemon")

                kernel.kill()

            until(lambda: not guests("sleep 7603"), "nothing of it is left")


def test_a_command_that_stops_its_keeper_ends_all_the_same(client: AgentOSClient) -> None:
    """The keeper is of the same user, so that it can be stopped; what is in charge of it can't."""
    reply = up(client.exec("kill -STOP $PPID; (env -i setsid sleep 7604 &); sleep 7604", timeout=0.3))

    assert (reply["timed_out"], guests("sleep 7604")) == (True, [])


def test_processes_that_fork_all_the_time_are_caught_up_with(client: AgentOSClient) -> None:
    grow = "f() { (sleep 0.01; f 7605 &) ; sleep 0.02; }; f"
    lines = [f"(setsid bash -c {grow!r} &)" for _ in range(6)]

    up(client.exec("\n".join([*lines, "sleep 7605"]), timeout=0.5))

    until(lambda: not guests("f 7605") and not guests("sleep 7605"), "nobody is left")


# -- It doesn't learn what the kernel holds ----------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [None, "none", "standard"])
def test_a_command_has_none_of_the_kernels_environment(
    client: AgentOSClient, isolation: Isolation | None, kernel: Kernel
) -> None:
    whose = {}
    if isolation is not None:
        up(client.spawn("a", command=["sleep", "1000"], isolation=isolation))
        whose = {"name": "a"}

    reply = up(client.exec("env; cat /proc/self/environ /proc/$PPID/environ 2>&1", **whose))  # type: ignore[arg-type]

    assert SECRET not in reply["stdout"]
    assert "GEMINI" not in reply["stdout"]


def test_the_kernels_own_environment_cant_be_read(client: AgentOSClient, kernel: Kernel) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everybody's: the operator's own commands are root's then")

    reply = up(client.exec(f"cat /proc/{kernel.pid}/environ; ls /proc/{kernel.pid}/fd"))

    assert reply["stdout"] == ""
    assert "Permission denied" in reply["stderr"]


@pytest.mark.parametrize("isolation", [None, "none", "standard"])
def test_no_descriptor_of_ours_is_open_in_a_command(client: AgentOSClient, isolation: Isolation | None) -> None:
    whose = {}
    if isolation is not None:
        up(client.spawn("a", command=["sleep", "1000"], isolation=isolation))
        whose = {"name": "a"}

    reply = up(client.exec(["ls", "/proc/self/fd"], stdin="given", **whose))  # type: ignore[arg-type]

    assert reply["stdout"].split() == ["0", "1", "2", "3"]  # 3 is the directory that it reads


# -- It holds nobody up ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_user")
def test_a_flood_of_output_takes_no_memory(client: AgentOSClient, kernel: Kernel) -> None:
    before = kernel.peak_rss

    reply = up(client.exec("yes & yes >&2", timeout=4))

    assert (reply["truncated"], len(reply["stdout"]), len(reply["stderr"])) == (True, 1 << 20, 1 << 20)
    assert kernel.peak_rss - before < 32 << 20


@pytest.mark.usefixtures("any_user")
def test_unread_input_and_output_that_is_written_first_hold_no_command_up(client: AgentOSClient) -> None:
    given = "x" * 200_000

    assert up(client.exec("true", stdin=given, timeout=PATIENCE))["exit_code"] == 0
    both = up(client.exec("head -c 2M /dev/zero; cat >&2", stdin=given, timeout=PATIENCE))
    assert (both["exit_code"], both["truncated"], both["stderr"]) == (0, True, given)


@pytest.mark.usefixtures("any_user")
def test_fifty_at_once_are_run_or_told_and_leave_nothing(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.exec("true"))  # what is made once is there now
    files = kernel.open_files
    ends: list[str] = []
    go = kernel.place / "go"
    command = f"(setsid sleep 7606 &); echo out; until [ -e {go} ]; do sleep 0.01; done"

    async def run() -> None:
        async def one(operator: object) -> None:
            try:
                done = await operator.exec(command)  # type: ignore[attr-defined]
                ends.append(done.stdout)
            except Busy:
                ends.append("busy")

        async with connect(kernel.socket) as first, trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one, first)
            while ends.count("busy") < 42:
                await first.echo(b"still there?")
            go.touch()

    trio.run(run)

    assert (len(ends), ends.count("out\n")) == (50, 8)
    assert ends.count("busy") == 42
    assert guests("sleep 7606") == []
    until(lambda: kernel.open_files <= files, "no descriptor is left")


@pytest.mark.usefixtures("any_user")
def test_neither_the_commands_of_one_caller_nor_those_of_all_fill_the_machine(kernel: Kernel) -> None:
    """Each connection is a caller of its own; all of them together are bounded too."""
    refused: list[str] = []

    async def run() -> None:
        async def one(operator: object) -> None:
            try:
                await operator.exec("sleep 7607")  # type: ignore[attr-defined]
            except Busy as error:
                refused.append(str(error))

        async with contextlib.AsyncExitStack() as stack:
            callers = [await stack.enter_async_context(connect(kernel.socket)) for _ in range(9)]
            async with trio.open_nursery() as nursery:
                for caller in callers * 8:
                    nursery.start_soon(one, caller)
                while len(guests("sleep\x007607")) < 64 or len(refused) < 8:
                    await trio.sleep(0.01)
                assert len(guests("sleep\x007607")) == 64
                nursery.cancel_scope.cancel()

    trio.run(run)

    assert all("64 commands run for callers of the kind operator" in one for one in refused)
    until(lambda: not guests("sleep 7607"), "they have ended")
