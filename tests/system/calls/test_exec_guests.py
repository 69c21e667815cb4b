"""EXEC by a guest: an outside client that gave rights away gets a fresh jail for each command, and nothing else."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE, Wire
from tests.system.calls.test_exec import guests
from tests.system.jails import cgroups, group_of
from tests.system.lives.test_death import children_of


@pytest.fixture
def guest(kernel: Kernel) -> Iterator[Wire]:
    """Somebody who came in as a guest with the rights of an agent in a jail."""
    if "isolation standard" not in (verdict := kernel.wait_line(r"\| isolation ")):
        pytest.skip(verdict)
    with kernel.connect() as wire:
        assert wire.call(Op.HELLO, {"as": "visitor", "level": "sandboxed"})["success"]
        yield wire


def run(guest: Wire, command: object, **more: object) -> dict[str, object]:
    reply: dict[str, object] = guest.call(Op.EXEC, {"command": command, **more})
    return reply


FILES = "find /workspace /agent /tmp -type f -writable"  # the interpreter may lie below /tmp, and is shown there


def test_a_guests_command_is_an_unprivileged_user_without_files_or_descriptors(guest: Wire) -> None:
    done = run(guest, f"id -u; pwd; {FILES}; ls -A /run; cat; ls /proc/self/fd", stdin="in\n")

    assert done["stdout"] == "1000\n/workspace\nin\n0\n1\n2\n3\n"
    assert (done["exit_code"], done["stderr"]) == (0, "")


def test_it_has_no_way_to_the_kernel(guest: Wire, kernel: Kernel) -> None:
    done = run(guest, "env; ls /run/agentos.sock /tmp/agentos.sock " + kernel.socket)

    assert "AGENTOS" not in str(done["stdout"])
    assert str(done["stderr"]).count("No such file or directory") == 3


def test_each_command_begins_anew(guest: Wire) -> None:
    assert run(guest, "echo kept > file; echo kept > /tmp/file; cat file")["stdout"] == "kept\n"
    assert run(guest, FILES)["stdout"] == ""


def test_no_file_of_the_hosts_is_shown_to_it(guest: Wire, kernel: Kernel) -> None:
    """A program that is named by its path is none of the host's, as it is where an agent is started."""
    program = kernel.place / "program"
    program.write_text("#!/bin/sh\necho shown\n")
    program.chmod(0o755)

    assert run(guest, [str(program)])["code"] == "not_found"
    assert run(guest, "true", cwd="/etc")["code"] == "bad_request"


def test_it_has_the_limits_of_an_agent(guest: Wire, kernel: Kernel) -> None:
    limits = str(run(guest, "ulimit -n; ulimit -f; ulimit -c")["stdout"]).split()
    forks = run(guest, "for i in $(seq 80); do sleep 5 & done; wait", timeout=PATIENCE)

    assert limits[:2] == ["1024", "262144"]
    assert "fork" in str(forks["stderr"])


def test_no_daemon_and_no_control_group_is_left(guest: Wire, kernel: Kernel) -> None:
    left = len(children_of(kernel.pid))
    files = kernel.open_files

    done = run(guest, "(env -i setsid sleep 7701 &); echo done")
    late = run(guest, "(env -i setsid sleep 7701 &); sleep 7701", timeout=0.3)

    assert (done["stdout"], late["timed_out"]) == ("done\n", True)
    assert guests("sleep 7701") == []
    until(lambda: len(children_of(kernel.pid)) <= left + 1 and kernel.open_files <= files, "all is put away")
    if cgroups(kernel) is not None:
        with kernel.connect() as wire:
            agent = wire.call(Op.SPAWN, {"name": "a", "command": ["sleep", "1000"]})
            around = group_of(agent["pid"], "pids").parent
            assert [name for name in os.listdir(around) if re.fullmatch(r"-\d+-\d+|exec-\d+", name)] == []
            wire.call(Op.KILL, {"name": "a", "grace": 0})


def test_it_ends_with_the_connection(guest: Wire) -> None:
    guest.send(Op.EXEC, {"command": "trap '' TERM; sleep 7702; sleep 7702"})
    until(lambda: guests("sleep\x007702"), "it runs")

    guest.close()

    until(lambda: not guests("sleep 7702"), "it has ended")


def test_each_guest_has_a_uid_of_its_own_on_the_host(guest: Wire, kernel: Kernel) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root all that the kernel starts is of one user")
    with kernel.connect() as other:
        assert other.call(Op.HELLO, {"as": "another", "level": "sandboxed"})["success"]
        guest.send(Op.EXEC, {"command": "sleep 7703", "timeout": PATIENCE})
        other.send(Op.EXEC, {"command": "sleep 7703", "timeout": PATIENCE})
        until(lambda: len(guests("sleep\x007703")) == 2, "both run")

        uids = {Path(f"/proc/{pid}").stat().st_uid for pid in guests("sleep\x007703")}

    assert len(uids) == 2
    assert 0 not in uids


def test_it_reaches_no_agent_that_isnt_its_own(guest: Wire, kernel: Kernel) -> None:
    number = kernel.spawn("a")

    assert run(guest, "true", name="a")["code"] == "permission_denied"
    assert run(guest, "true", id=number)["code"] == "permission_denied"

    with kernel.connect() as wire:
        wire.call(Op.KILL, {"name": "a", "grace": 0})


def test_what_a_guest_may_not_run_is_not_run(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        assert wire.call(Op.HELLO, {"as": "reader", "level": "readonly"})["success"]
        refused = run(wire, "true")

    assert refused["code"] == "permission_denied"
