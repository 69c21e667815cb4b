"""Pseudo-terminals of a jail: programs get them where the policy says so, up to a bound, and none elsewhere."""

import pytest

from agentos.sandbox.policy import MAX_TERMINALS, BadPolicy, Policy
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import python, run

ON_A_TERMINAL = """
import os, pty
pid, master = pty.fork()
if pid == 0:
    os.execv("/bin/sh", ["sh", "-c", "tty; stty size; echo colours"])
seen = b""
try:
    while part := os.read(master, 4096):
        seen += part
except OSError:  # the other end is closed
    pass
print(seen.decode(), os.waitpid(pid, 0)[1])
"""
AS_MANY_AS_THERE_ARE = """
import os
opened = []
try:
    while True:
        opened.append(os.openpty())
except OSError as error:
    print(len(opened), error.strerror)
print(sorted(os.listdir("/dev/pts"))[-1])
"""
TYPE_INTO_IT = """
import errno, fcntl, os, termios
master, slave = os.openpty()
for request in (termios.TIOCSTI, 0x541C, 0x5423, termios.TIOCSTI | 1 << 32):
    try:
        fcntl.ioctl(slave, request, b"x")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


async def test_a_program_runs_on_a_terminal_of_its_jail(spawner: Spawner) -> None:
    ended = await run(spawner, python(ON_A_TERMINAL, terminals=True))
    assert ended.out.splitlines() == ["/dev/pts/0", "0 0", "colours", " 0"], ended


async def test_there_are_at_most_so_many_at_a_time(spawner: Spawner) -> None:
    ended = await run(spawner, python(AS_MANY_AS_THERE_ARE, terminals=True))
    assert ended.out.splitlines() == [f"{MAX_TERMINALS} No space left on device", "ptmx"], ended


async def test_no_input_can_be_faked_and_no_line_discipline_set(spawner: Spawner) -> None:
    ended = await run(spawner, python(TYPE_INTO_IT, terminals=True))
    assert ended.out.splitlines() == ["EPERM"] * 4, ended


async def test_without_them_there_is_none(spawner: Spawner) -> None:
    ended = await run(spawner, python("import os; print(os.listdir('/dev/pts')); os.openpty()"))
    assert ended.out == "[]\n"
    assert "No such file or directory" in ended.err


def test_a_strict_jail_has_no_terminals() -> None:
    with pytest.raises(BadPolicy, match="terminals"):
        Policy(terminals=True, profile="strict")
