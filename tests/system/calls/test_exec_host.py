"""EXEC on the host: the operator's own commands, and those of an agent without a jail."""

import os
import pwd
import signal
import sys
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.opcodes import Op
from tests.conftest import Connect
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import as_agent, ask, info, relay, up
from tests.system.calls.test_exec import guests, sleeper
from tests.system.jails import crippled, need_cgroups

ME = pwd.getpwuid(os.geteuid())


# -- The operator's ----------------------------------------------------------------------------------------------------


def test_the_operators_commands_are_the_operators_own(client: AgentOSClient, kernel: Kernel) -> None:
    reply = up(client.exec("id -u; echo $HOME; echo $USER; pwd; echo $0; echo $SHELL"))

    expected = [str(ME.pw_uid), ME.pw_dir, ME.pw_name, str(kernel.place), "/bin/bash", "/bin/bash"]
    assert reply["stdout"].splitlines() == expected
    assert (reply["exit_code"], reply["stderr"], reply["timed_out"]) == (0, "", False)


def test_it_is_bash_and_no_other_shell_that_reads_a_line(client: AgentOSClient) -> None:
    reply = up(client.exec("[[ abc == a* ]] && echo ${BASH_VERSION:+bash} <(true)"))

    assert reply["stdout"].startswith("bash /dev/fd/")


@pytest.mark.parametrize("line", ["-c 'echo no'", "--version", "+x"])
def test_a_line_that_looks_like_an_option_is_none(client: AgentOSClient, line: str) -> None:
    reply = up(client.exec(line))

    assert (reply["exit_code"], reply["stdout"]) == (127, "")
    assert "command not found" in reply["stderr"]


def test_a_line_that_patterns_do_not_cover_is_refused_and_is_no_internal_error(
    kernel: Kernel, client: AgentOSClient
) -> None:
    rights = {"level": "minimal", "allow": {"commands": ["echo *", "printf *"]}}
    number = sleeper(client, "patterns", isolation="none", permissions=rights)

    lines = ("time x=1 time b", "x=1 time time y=1 b", "echo >& f", "echo <&'f$(id)'", "getopts x -a", "printf -v -x y")
    with as_agent(kernel, number) as agent:
        replies = [agent.exec(line) for line in lines]

    assert {reply["code"] for reply in replies} == {"permission_denied"}


def test_what_may_echo_runs_nothing_else_by_a_quoted_target(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "echoes"
    place.mkdir()
    rights = {"level": "minimal", "allow": {"commands": ["echo *"], "write": [f"{place}/**"]}}
    number = sleeper(client, "echoing", isolation="none", cwd=str(place), permissions=rights)

    with as_agent(kernel, number) as agent:
        assert up(agent.exec(f"echo hi >'{place}/f'"))["exit_code"] == 0
        reply = agent.exec(f"echo hi >&'{place}/g$(touch {place}/pwned)'")

    assert (reply["code"], reply["rule"][:9]) == ("permission_denied", "no rule (")
    assert os.listdir(place) == ["f"]


def test_a_directory_is_the_clients_or_begins_at_that_of_the_configuration(
    client: AgentOSClient, kernel: Kernel, connect: Connect
) -> None:
    here = kernel.place / "here"
    here.mkdir(exist_ok=True)
    wire = connect()

    for cwd in (str(here), os.path.relpath(here)):
        assert up(client.exec("pwd", cwd))["stdout"] == f"{here}\n"
    assert wire.call(Op.EXEC, {"command": "pwd", "cwd": "here"})["stdout"] == f"{here}\n"
    assert wire.call(Op.EXEC, {"command": "pwd", "cwd": "~"})["stdout"] == f"{ME.pw_dir}\n"
    assert client.exec("pwd", str(kernel.place / "nowhere"))["code"] == "not_found"


def test_environment_and_input_can_be_given(client: AgentOSClient) -> None:
    reply = up(client.exec("echo $MINE; cat", env={"MINE": "yes"}, stdin="in\0put"))

    assert reply["stdout"] == "yes\nin\0put"


def test_as_much_input_as_a_request_holds_arrives_whole_while_much_is_written(client: AgentOSClient) -> None:
    given = "x" * 240_000

    reply = up(client.exec("head -c 3M /dev/zero; wc -c >&2", stdin=given))

    assert (reply["stderr"], reply["truncated"]) == ("240000\n", True)


def test_an_argv_is_run_as_it_is(client: AgentOSClient, kernel: Kernel) -> None:
    plain = kernel.place / "plain"
    plain.touch()

    assert up(client.exec(["printf", "%s|", "a b", "$HOME", ""]))["stdout"] == "a b|$HOME||"
    assert client.exec(["no-such-program"])["code"] == "not_found"
    assert client.exec([str(plain)])["code"] == "unavailable"


def test_the_operators_commands_have_no_limits_of_ours(client: AgentOSClient, kernel: Kernel) -> None:
    assert up(client.exec("ulimit -f; ulimit -u"))["stdout"].split()[0] == "unlimited"


def test_commands_that_sleep_stop_no_other_caller(kernel: Kernel) -> None:
    async def run() -> None:
        async with connect(kernel.socket) as busy, connect(kernel.socket) as other, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(busy.exec, "sleep 7500")
            with trio.fail_after(PATIENCE):
                while len(guests("sleep\x007500")) < 8:
                    await other.echo(b"are you there?")
                for _ in range(100):
                    await other.echo(b"are you there?")
            assert len(guests("sleep\x007500")) == 8  # not one of them has come to an end
            nursery.cancel_scope.cancel()

    trio.run(run)

    until(lambda: not guests("sleep 7500"), "they have ended")


def test_the_ninth_command_at_once_is_refused_and_that_of_another_caller_is_not(kernel: Kernel) -> None:
    async def run() -> None:
        async with connect(kernel.socket) as one, connect(kernel.socket) as other, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one.exec, "sleep 7510")
            while len(guests("sleep\x007510")) < 8:
                await trio.sleep(0.01)
            with pytest.raises(Exception, match="8 commands run for you already"):
                await one.exec("true")
            assert (await other.exec("echo here")).stdout == "here\n"
            nursery.cancel_scope.cancel()

    trio.run(run)

    until(lambda: not guests("sleep 7510"), "they have ended")


# -- An agent's without a jail -----------------------------------------------------------------------------------------


def test_an_agent_without_a_jail_runs_them_as_it_runs_itself(kernel: Kernel, client: AgentOSClient) -> None:
    (kernel.place / "its").mkdir(exist_ok=True)
    cwd = str(kernel.place / "its")
    agent = relay(kernel, client, "bare", isolation="none", env={"MINE": "yes"}, cwd=cwd)

    reply = ask(client, agent, "exec", command="id -u; echo $MINE $AGENTOS_AGENT_NAME; pwd")

    assert reply["stdout"].splitlines() == [str(os.geteuid()), "yes bare", cwd]
    assert up(client.exec("echo $MINE; pwd", name="bare"))["stdout"] == f"yes\n{cwd}\n"


def test_they_call_the_kernel_as_that_agent(client: AgentOSClient) -> None:
    number = sleeper(client, "bare", isolation="none")
    code = "from agentos_sdk import AgentOSClient; print(AgentOSClient().hello()['agent_id'])"

    assert up(client.exec([sys.executable, "-c", code], name="bare"))["stdout"] == f"{number}\n"


def test_they_are_within_its_limits(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    sleeper(client, "bare", isolation="none", limits={"max_pids": 12, "open_files": 64})

    reply = up(client.exec("ulimit -n; for i in $(seq 40); do sleep 2 & done; wait", name="bare", timeout=PATIENCE))

    assert reply["stdout"] == "64\n"
    assert "fork" in reply["stderr"]


def test_they_end_with_it(kernel: Kernel, client: AgentOSClient, connect: Connect) -> None:
    sleeper(client, "bare", isolation="none")
    wire = connect()
    wire.send(Op.EXEC, {"name": "bare", "command": "setsid sleep 7512 & trap '' TERM; sleep 7512; sleep 7512"})
    until(lambda: len(guests("sleep\x007512")) == 2, "the command runs")

    client.kill("bare", grace=0)

    assert wire.receive().json["error"] == "bare has ended, and the command beside it with it"
    assert guests("sleep 7512") == []


def test_they_stand_still_with_it(kernel: Kernel, client: AgentOSClient, connect: Connect) -> None:
    sleeper(client, "bare", isolation="none")
    wire = connect()
    go = kernel.place / "go"
    wire.send(Op.EXEC, {"name": "bare", "command": f"until [ -e {go} ]; do sleep 0.01; done; echo 7513"})
    until(lambda: guests("echo 7513"), "the command runs")
    [shell] = [pid for pid in guests("echo 7513") if Path(f"/proc/{pid}/comm").read_text() == "bash\n"][:1]

    up(client.pause("bare"))
    until(lambda: "T (stopped)" in Path(f"/proc/{shell}/status").read_text(), "it stands still")
    up(client.resume("bare"))
    go.touch()

    assert wire.receive().json["stdout"] == "7513\n"
    assert info(client, "bare")["state"] == "running"


def test_the_operators_socket_takes_none_of_them_for_the_operator(kernel: Kernel, client: AgentOSClient) -> None:
    """What an agent runs on the host must not become more than the agent by asking at another door."""
    sleeper(client, "bare", isolation="none")
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({kernel.socket!r}); print(s.recv(200))"

    reply = up(client.exec(["python3", "-c", code], name="bare"))

    assert "permission_denied" in reply["stdout"], reply


def test_a_signal_that_ends_it_is_in_its_status_as_in_a_shell(client: AgentOSClient) -> None:
    assert up(client.exec("kill -TERM $$"))["exit_code"] == 128 + signal.SIGTERM


@pytest.mark.usefixtures("kernels")
def test_where_there_is_no_bash_that_is_said_and_a_program_runs_all_the_same() -> None:
    python = os.path.realpath(sys.executable)
    if python.startswith("/usr/bin/"):
        pytest.skip("where bash is taken away our own interpreter would go too")
    with crippled("--hide", "/usr/bin") as kernel, kernel.client() as client:
        refused = client.exec("true")
        done = up(client.exec([python, "-c", "print('here')"]))

    assert refused["code"] == "unavailable"
    assert "a line for the shell is run by /bin/bash, and there is none" in refused["error"]
    assert done["stdout"] == "here\n"
