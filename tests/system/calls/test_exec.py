"""EXEC: a command in an agent's jail: its status and output, its limits, and what it can't do or leave behind."""

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import CallError, Unavailable
from agentos_sdk.opcodes import Op
from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import is_night, rounds
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.system.agents import RELAY_INSIDE, TALKS, ask, in_state, info, known, relay, up
from tests.system.lives.test_death import children_of

SLEEP = ["sleep", "1000"]


def sleeper(client: AgentOSClient, name: str, **more: object) -> int:
    return int(up(client.spawn(name, command=SLEEP, **more))["id"])  # type: ignore[arg-type]


def test_a_shell_line_gives_its_output_and_status(client: AgentOSClient) -> None:
    sleeper(client, "a")

    reply = up(client.exec("echo out; echo err >&2; exit 3", name="a"))

    assert reply == {
        "success": True,
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
        "timed_out": False,
        "truncated": False,
    }


def test_an_argv_is_run_as_it_is(client: AgentOSClient) -> None:
    sleeper(client, "a")

    assert up(client.exec(["printf", "%s|", "a b", "$HOME", ""], name="a"))["stdout"] == "a b|$HOME||"


def test_a_signal_that_ends_it_is_in_its_status_as_in_a_shell(client: AgentOSClient) -> None:
    sleeper(client, "a")

    assert up(client.exec("kill -TERM $$", name="a"))["exit_code"] == 128 + signal.SIGTERM
    assert up(client.exec("kill -KILL $$", name="a"))["exit_code"] == 128 + signal.SIGKILL


def test_it_has_the_agents_files_user_environment_and_directory(client: AgentOSClient) -> None:
    sleeper(client, "a", env={"MINE": "yes"}, cwd="/tmp")
    up(client.exec("echo kept > /workspace/file", name="a"))

    reply = up(client.exec("id -u; hostname; echo $MINE $AGENTOS_AGENT_NAME; pwd; cat /workspace/file", name="a"))

    assert reply["stdout"].split() == ["1000", "a", "yes", "a", "/tmp", "kept"]
    assert not Path("/workspace/file").exists()


def test_environment_directory_and_input_can_be_given(client: AgentOSClient) -> None:
    sleeper(client, "a", env={"MINE": "yes"})

    reply = up(
        client.exec("echo $MINE $OTHER; pwd; cat", "/agent", name="a", env={"OTHER": "o", "MINE": "no"}, stdin="a\0b\n")
    )

    assert reply["stdout"] == "no o\n/agent\na\0b\n"
    assert up(client.exec("cat; readlink /proc/self/fd/0", name="a"))["stdout"] == "/dev/null\n"


def test_much_input_arrives_whole(client: AgentOSClient) -> None:
    sleeper(client, "a")

    assert up(client.exec("wc -c", name="a", stdin="x" * 200_000))["stdout"].split() == ["200000"]


def test_what_isnt_text_is_replaced(client: AgentOSClient) -> None:
    sleeper(client, "a")

    assert up(client.exec(r"""printf '\377\303\266"\\\n'""", name="a"))["stdout"] == '\N{REPLACEMENT CHARACTER}ö"\\\n'


def test_text_that_is_cut_by_a_piece_of_the_reply_stays_whole(client: AgentOSClient) -> None:
    sleeper(client, "a")

    reply = up(
        client.exec(["sh", "-c", "printf x; i=0; while [ $i -lt 40000 ]; do printf ö€; i=$((i+1)); done"], name="a")
    )

    assert reply["stdout"] == "x" + "ö€" * 40000


@pytest.fixture
def agent(client: AgentOSClient) -> None:
    """An agent that sleeps."""
    sleeper(client, "a")


@pytest.mark.usefixtures("agent")
@each_row(
    ("fields", "code", "text"),
    [
        ({"command": []}, "bad_request", "command: expected a line for the shell"),
        ({"command": [""]}, "bad_request", "command: expected a line for the shell"),
        ({"command": 5}, "bad_request", "command: expected"),
        ({"command": ["no-such-program"]}, "not_found", "no-such-program: not found in "),
        ({"command": ["/etc/hosts"]}, "unavailable", "Permission denied"),
        ({"command": "true", "cwd": "/etc"}, "bad_request", "cwd: expected a directory in /workspace"),
        ({"command": "true", "cwd": "/workspace/none"}, "not_found", "/workspace/none"),
        ({"command": "true", "timeout": -1}, "bad_request", "timeout"),
        ({"command": "true", "tty": {"term": "x y"}}, "bad_request", "tty.term: expected a terminal's type"),
        ({"command": "true", "tty": {"rows": 0}}, "bad_request", "tty.rows: expected a whole number from 1"),
        ({"command": "true", "tty": {}, "stdin": "x"}, "bad_request", "stdin: expected none with tty"),
        ({"command": "true", "tty": {}}, "bad_request", "tty: needs protocol version 2"),
        ({"command": "true", "timeout": 3601}, "bad_request", "timeout: expected at most 3600 seconds, or 0 for none"),
        ({"command": "true", "env": {"AGENTOS_SOCKET": "x"}}, "bad_request", "env.AGENTOS_SOCKET"),
        ({"command": "true", "env": {"A=B": "x"}}, "bad_request", "env.A=B"),
        ({"command": "true", "name": "nobody"}, "not_found", "nobody"),
        ({"command": "true", "env": {"BASH_ENV": "x"}}, "bad_request", "env.BASH_ENV"),
        ({"command": "true", "env": {"A": "b\0c"}}, "bad_request", "env.A: expected a string, got a NUL"),
        ({"command": "true", "stdin": "\ud800"}, "bad_request", "stdin: expected a string, got half"),
        ({"command": ["echo", "\0"]}, "bad_request", "command[1]: expected a string, got a NUL"),
        ({"command": "true", "id": 1}, "bad_request", "exactly one of name and id"),
    ],
)
def test_what_cant_be_run_is_refused(client: AgentOSClient, fields: dict[str, object], code: str, text: str) -> None:
    reply = client.request(Op.EXEC, {"name": "a", **fields}, wait=None)

    assert (reply["success"], reply["code"]) == (False, code)
    assert text in reply["error"]


def test_there_is_nothing_to_enter_without_life(client: AgentOSClient) -> None:
    sleeper(client, "over")
    client.kill("over", grace=0)

    ended = client.exec("true", name="over")
    assert (ended["code"], ended["error"]) == ("bad_request", "over is exited: expected an agent that is running")


def test_a_paused_agent_says_so_until_it_goes_on(client: AgentOSClient) -> None:
    sleeper(client, "a")

    up(client.pause("a"))
    refused = client.exec("true", name="a")
    up(client.resume("a"))

    assert refused["code"] == "bad_request"
    assert "a is paused: resume it first" in refused["error"]
    assert up(client.exec("true", name="a"))["exit_code"] == 0


# -- Its end -----------------------------------------------------------------------------------------------------------


def guests(text: str) -> list[int]:
    """The processes on this machine with these words in their command lines; with NULs between them: exactly these.

    A number alone could also be the pid of a kernel, which stands in the command lines of its zygote and its guard.
    """
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path("/proc", name, "cmdline").read_bytes() if name.isdigit() else b""
            if text.encode() in (line if "\0" in text else line.replace(b"\0", b" ")):
                found.append(int(name))
        except OSError:
            pass
    return found


def test_a_command_that_ignores_sigterm_ends_at_the_timeout(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")

    reply = up(client.exec("trap '' TERM INT HUP; echo begun; sleep 7401 & wait; sleep 7401", name="a", timeout=2))

    assert (reply["timed_out"], reply["exit_code"], reply["stdout"]) == (True, 128 + signal.SIGKILL, "begun\n")
    assert guests("sleep 7401") == []
    assert info(client, "a")["state"] == "running"


def test_a_process_that_becomes_a_daemon_ends_with_the_command(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")

    reply = up(client.exec("for i in 1 2 3; do (setsid sleep 7402 &) ; done; echo done", name="a"))

    assert (reply["stdout"], reply["exit_code"]) == ("done\n", 0)
    assert guests("sleep 7402") == []


def test_a_command_with_its_output_held_open_elsewhere_keeps_no_caller_waiting(
    kernel: Kernel, client: AgentOSClient
) -> None:
    """Its agent may be given the pipe, through a socket in the workspace, and write for ever."""
    script = kernel.place / "hoarder.py"
    script.write_text(
        "import os, socket\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('/workspace/s'); server.listen()\n"
        "fd = socket.recv_fds(server.accept()[0], 9, 1)[1][0]\n"
        "while True: os.write(fd, b'x' * 65536)\n"
    )
    up(client.spawn("hoarder", str(script)))
    until(lambda: up(client.exec("test -S s", name="hoarder"))["exit_code"] == 0, "it listens")

    give = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('s'); socket.send_fds(s, [b'x'], [1])"
    reply = up(client.exec(["python3", "-c", give], name="hoarder", timeout=PATIENCE))

    assert (reply["exit_code"], reply["timed_out"]) == (0, False)


def test_a_withdrawn_command_ends(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")

    async def withdraw() -> None:
        async with connect(kernel.socket) as operator:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(operator.exec, "sleep 7403", name="a"))
                while not guests("sleep 7403"):
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            assert (await operator.exec("echo still here", name="a")).stdout == "still here\n"

    trio.run(withdraw)

    until(lambda: not guests("sleep 7403"), "the command has ended")


def test_a_command_whose_asker_hangs_up_ends(kernel: Kernel, client: AgentOSClient, connect: Connect) -> None:
    sleeper(client, "a")
    wire = connect()
    wire.send(Op.EXEC, {"name": "a", "command": "sleep 7404"})
    until(lambda: guests("sleep 7404"), "the command runs")

    wire.close()

    until(lambda: not guests("sleep 7404"), "the command has ended")


def test_the_agents_end_is_the_commands_end(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")
    said: list[str] = []

    async def run() -> None:
        async def command() -> None:
            async with connect(kernel.socket) as one:
                with pytest.raises(Unavailable) as error:
                    await one.exec("sleep 7405", name="a")
                said.append(str(error.value))

        async with connect(kernel.socket) as two, trio.open_nursery() as nursery:
            nursery.start_soon(command)
            while not guests("sleep 7405"):
                await trio.sleep(0.01)
            await two.kill("a", grace=0)

    trio.run(run)

    assert said == ["a has ended, and the command in its jail with it"]
    assert guests("sleep 7405") == []


def test_pausing_the_agent_pauses_the_command(kernel: Kernel, client: AgentOSClient, connect: Connect) -> None:
    sleeper(client, "a")
    wire = connect()
    wire.send(Op.EXEC, {"name": "a", "command": "until [ -e go ]; do sleep 0.01; done; echo 7407"})
    until(lambda: guests("echo 7407"), "the command runs")
    [shell, *_] = guests("echo 7407")

    up(client.pause("a"))
    until(lambda: "T (stopped)" in Path(f"/proc/{shell}/status").read_text(), "it stands still")
    up(client.resume("a"))
    up(client.exec("touch go", name="a"))

    assert wire.receive().json["stdout"] == "7407\n"


def test_eight_commands_end_with_their_agent_at_whatever_moment(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        for number in range(0, 10, 1 if is_night() else 2):
            sleeper(client, "a")

            async def run(number: int = number) -> None:
                async with connect(kernel.socket) as operator, trio.open_nursery() as nursery:

                    async def command() -> None:
                        with suppress(CallError):
                            await operator.exec("sleep 7408", name="a")

                    for _ in range(8):
                        nursery.start_soon(command)
                    await trio.sleep(number / 200)
                    await operator.kill("a", grace=0)

            trio.run(run)
            assert guests("sleep 7408") == []
        until(lambda: not children_of(kernel.pid), "all have ended and were reaped")
    assert "control group stays" not in kernel.said


def test_a_kernel_that_stops_ends_the_commands(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client, kernel.connect() as wire:
        sleeper(client, "a")
        wire.send(Op.EXEC, {"name": "a", "command": "trap '' TERM; sleep 7409; sleep 7409"})
        until(lambda: guests("sleep 7409"), "the command runs")
        with kernel.connect() as host:
            host.send(Op.EXEC, {"command": "trap '' TERM; (env -i setsid sleep 7511 &); sleep 7511; sleep 7511"})
            until(lambda: len(guests("sleep\x007511")) == 2, "that of the operator on the host runs")

            kernel.stop()

    assert guests("sleep 7409") == guests("sleep 7511") == []
    assert "control group stays" not in kernel.said


# -- Bounds ------------------------------------------------------------------------------------------------------------


FLOODS = """
(yes | head -c 2M; touch out; exec yes) &
(head -c 2M /dev/zero; touch err; exec cat /dev/zero) >&2 &
until [ -e go ]; do sleep 0.01; done
"""
"""The files are there when more has been written than is kept and fits into a pipe."""


def test_a_flood_is_cut_and_keeps_no_other_caller_waiting(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")

    async def run() -> None:
        async def flood() -> None:
            async with connect(kernel.socket) as one:
                done = await one.exec(FLOODS, name="a", timeout=0)
            assert done.truncated
            assert done.stdout == "y\n" * (1 << 19)
            assert done.stderr == "\0" * (1 << 20)

        async with connect(kernel.socket) as other, trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            while (await other.exec("test -e out && test -e err", name="a")).exit_code != 0:
                await other.list_agents()
            await other.exec("touch go", name="a")

    trio.run(run)


def test_eight_at_once_and_the_ninth_is_told(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "a")

    async def run() -> None:
        async with connect(kernel.socket) as operator, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(partial(operator.exec, "sleep 7406", name="a"))
            while len(guests("sleep 7406")) < 8:
                await trio.sleep(0.01)
            refused = await trio.to_thread.run_sync(lambda: client.exec("true", name="a"))
            assert refused["code"] == "busy"
            # Neither can keep the other out.
            own = await trio.to_thread.run_sync(lambda: ask(client, agent, "exec", command="true"))
            assert own["exit_code"] == 0
            nursery.cancel_scope.cancel()

    trio.run(run)

    until(lambda: not guests("sleep 7406"), "they have ended")
    assert up(client.exec("true", name="a"))["exit_code"] == 0


def test_an_agent_that_has_used_up_its_processes_lets_no_command_in(client: AgentOSClient) -> None:
    bomb = "import os, time\ntry:\n  while os.fork(): pass\nexcept OSError: pass\ntime.sleep(1000)"
    up(client.spawn("full", command=["python3", "-c", bomb], limits={"max_pids": 16}))
    until(lambda: client.exec("true", name="full").get("code") == "quota_exceeded", "it is full")

    assert "max_pids" in client.exec("true", name="full")["error"]


def test_it_is_within_the_agents_limits(client: AgentOSClient) -> None:
    sleeper(client, "a", limits={"max_pids": 12, "file_size": "1M", "open_files": 64})

    limits = up(client.exec("ulimit -n; ulimit -f; head -c 2M /dev/zero > f; echo $?", name="a"))

    assert limits["stdout"].split()[:2] == ["64", "1024"]
    assert limits["stdout"].split()[2] == str(128 + signal.SIGXFSZ)
    forks = up(client.exec("for i in $(seq 40); do sleep 2 & done; wait", name="a", timeout=PATIENCE))
    assert "fork" in forks["stderr"]


def test_a_command_that_takes_too_much_memory_doesnt_get_it(client: AgentOSClient) -> None:
    sleeper(client, "a", limits={"memory": "64M"}, restart="permanent")

    reply = client.exec(["python3", "-c", "x = b'x' * (512 << 20); print('got it')"], name="a", timeout=PATIENCE)

    assert "got it" not in reply.get("stdout", "")  # where a control group kills for that, the agent may go too


# -- Who may -----------------------------------------------------------------------------------------------------------


def test_an_agent_runs_commands_in_its_own_jail_without_saying_whose(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "self")

    assert ask(client, agent, "exec", command="hostname")["stdout"] == "self\n"
    assert ask(client, agent, "exec", command=["hostname"], agent_id=agent)["stdout"] == "self\n"


def test_it_has_its_descendants_jails_and_neither_its_parents_nor_a_siblings(
    kernel: Kernel, client: AgentOSClient
) -> None:
    boss = relay(kernel, client, "boss", permissions=TALKS)
    child = up(ask(client, boss, "spawn", name="child", script=RELAY_INSIDE, permissions=TALKS, ready="hello"))["id"]
    other = up(ask(client, boss, "spawn", name="other", command=SLEEP))["id"]

    assert ask(client, boss, "exec", command="hostname", name="other")["stdout"] == "other\n"
    for forbidden in (boss, other):
        reply = ask(client, child, "exec", command="id", agent_id=forbidden)
        assert reply["code"] == "permission_denied"
        assert "it is neither you nor an agent that you spawned" in reply["error"]


def test_a_command_calls_the_kernel_as_the_agent(client: AgentOSClient) -> None:
    number = sleeper(client, "a")
    code = "from agentos import AgentOSClient; print(AgentOSClient().hello()['agent_id'])"

    assert up(client.exec(["python3", "-c", code], name="a"))["stdout"] == f"{number}\n"


def test_a_command_cant_signal_or_see_the_agent(client: AgentOSClient) -> None:
    sleeper(client, "a")

    code = "import os; print(len([name for name in os.listdir('/proc') if name.isdigit()])); os.kill(-1, 9)"
    reply = up(client.exec(["python3", "-c", code], name="a"))

    assert reply["stdout"] == "2\n"  # PID 1 and itself
    assert info(client, "a")["state"] == "running"


HARASS = """
import os, sys
while True:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
        if pid not in (1, os.getpid()):
            try: os.kill(pid, int(sys.argv[1]))
            except OSError: pass
"""
"""Signals whoever comes in, where no Landlock keeps it from that."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_signals_every_entering_process_holds_no_caller_up(client: AgentOSClient, number: int) -> None:
    up(client.spawn("rude", command=["python3", "-c", HARASS, str(int(number))]))

    for _ in range(10):
        reply = client.exec("true", name="rude", timeout=0.5)
        assert reply["success"] or reply["code"] in ("unavailable", "timeout"), reply
        if reply.get("timed_out") or reply.get("code") == "timeout":
            break  # it can, and once is enough

    assert info(client, "rude")["state"] == "running"
    assert client.kill("rude", grace=0)


# -- Nothing is left ---------------------------------------------------------------------------------------------------


def cgroups_below(kernel: Kernel) -> list[str]:
    with kernel.client() as client:
        found = up(client.inspect("a"))["cgroups"] or []
    return [name for directory in found for name in os.listdir(directory) if name.startswith("exec-")]


def test_many_leave_no_descriptor_no_zombie_and_no_control_group(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        sleeper(client, "a")
        for _ in range(3):
            up(client.exec("true", name="a"))  # what is made once is there now
        files, children = kernel.open_files, len(children_of(kernel.pid))

        for number in range(rounds(20)):
            match number % 5:
                case 0:
                    up(client.exec("echo out", name="a", stdin="in"))
                case 1:
                    assert up(client.exec("(setsid sleep 100 &); sleep 100", name="a", timeout=0.05))["timed_out"]
                case 2:
                    assert client.exec(["nonsense"], name="a")["code"] == "not_found"
                case 3:
                    assert up(client.exec("head -c 2M /dev/zero", name="a"))["truncated"]
                case 4:
                    up(client.exec("kill -9 $$", name="a"))

        until(lambda: kernel.open_files <= files, f"{kernel.open_files} files are open, {files} were before")
        until(lambda: len(children_of(kernel.pid)) <= children, "no child is left")
        assert cgroups_below(kernel) == []
        assert info(client, "a")["state"] == "running"


def test_after_a_restart_the_new_life_is_entered(client: AgentOSClient) -> None:
    sleeper(client, "a", restart="permanent")
    up(client.exec("touch /workspace/old", name="a"))
    former = known(client, "a")

    os.kill(former, signal.SIGKILL)
    until(lambda: info(client, "a")["restarts"] == 1, "it is restarted")
    in_state(client, "a", "running")

    assert up(client.exec("ls /workspace", name="a"))["stdout"] == ""


def test_a_command_or_directory_with_a_long_name_is_an_error_like_others(client: AgentOSClient) -> None:
    sleeper(client, "a")
    long = "é" * 1500

    for fields in ({"command": [f"/usr/{long}"]}, {"command": "true", "cwd": f"/tmp/{long}"}):
        reply = client.exec(**fields, name="a")
        assert (reply["success"], reply["code"]) == (False, "unavailable"), reply
        assert reply["error"].startswith(("/usr/é", "/tmp/é")), reply
        assert "File name too long" in reply["error"]


# -- What is written down ----------------------------------------------------------------------------------------------


def test_what_is_run_is_written_down_before_and_what_is_refused_too(client: AgentOSClient) -> None:
    sleeper(client, "a")
    before = client.get_audit_log(limit=1)["entries"]
    since = before[-1]["id"] if before else 0

    up(client.exec("echo one", name="a"))
    broken = up(client.exec("echo two |", name="a"))
    client.exec("rm -rf /", name="a")

    def written() -> list[tuple[str, str, str, str]]:
        entries = client.get_audit_log(category="commands", since_id=since)["entries"]
        return [(entry["about"], entry["phase"], entry["outcome"], entry["rule"]) for entry in entries][-5:]

    until(lambda: len(written()) == 5, "all is written")
    [intent, outcome, _, unclear, dangerous] = written()
    assert intent[:3] == ("beside a: echo one", "intent", "")
    assert outcome[:3] == ("beside a: echo one", "outcome", "ok")
    assert unclear[:3] == ("beside a: echo two |", "outcome", "ok")
    assert (broken["exit_code"], broken["stdout"]) == (2, ""), "bash says itself what it does not understand"
    assert dangerous[:3] == ("beside a: rm -rf /", "outcome", "permission_denied")


def test_explaining_a_command_runs_nothing_and_says_what_would_be_said(client: AgentOSClient) -> None:
    sleeper(client, "a", permissions={"level": "minimal", "allow": {"commands": ["echo *"]}})

    may = up(client.explain("a", "EXEC", {"command": "echo hello > file"}))
    may_not = up(client.explain("a", "EXEC", {"command": "touch file; echo"}))

    assert may_not["decision"] == "deny"
    assert "touch file" in may_not["reason"]
    assert may["decision"] == "deny"  # nothing grants it to write the file
    assert up(client.explain("a", "EXEC", {"command": "echo hello"}))["decision"] == "allow"
    assert up(client.exec("ls -A", name="a"))["stdout"] == ""
