"""A file that exists and can't be executed: the error names what it lacks, not the file."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.sandbox.errors import StepFailed
from agentos.sandbox.inside.programs.shebang import FirstLine, read_first_line
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Limits, Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import start_spawner

ELF = b"\x7fELF" + b"\0" * 60 + b"/lib/ld-none-x.so.1\0" + b"\0" * 100


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    spawner = start_spawner()
    yield spawner
    spawner.close()


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("data", "interpreter", "argument", "fault"),
    [
        (b"#!/bin/sh\r\necho\r\n", "/bin/sh\r", "", "CRLF"),
        (b"#!/usr/bin/env python3\r\n", "/usr/bin/env", "python3", "CRLF"),
        (b"#! /bin/none -e -u\n", "/bin/none", "-e -u", ""),
        (b"#!/bin/sh", "/bin/sh", "", ""),
        (b"\xef\xbb\xbf#!/bin/sh\n", "", "", "byte order mark"),
        (ELF, "/lib/ld-none-x.so.1", "", ""),
    ],
)
def test_what_a_first_line_names(data: bytes, interpreter: str, argument: str, fault: str, tmp_path: Path) -> None:
    found = read_first_line(write(tmp_path / "a", data))

    assert found is not None
    assert found[:2] == (interpreter.strip(), argument)
    assert fault in found.fault
    assert bool(found.fault) == bool(fault)


@pytest.mark.parametrize("data", [b"", b"echo hi\n", b"\x7fELF", b"\xff\xfe"])
def test_a_file_that_names_nothing(data: bytes, tmp_path: Path) -> None:
    assert read_first_line(write(tmp_path / "a", data)) is None


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    assert read_first_line(str(tmp_path / "fifo")) is None
    assert read_first_line(str(tmp_path / "none")) is None
    assert isinstance(read_first_line("/bin/sh"), FirstLine | None)


@pytest.mark.parametrize(
    ("data", "text", "number"),
    [
        (b"#!/bin/sh\r\n", "its interpreter /bin/sh isn't there .its first line ends with CRLF", errno.ENOENT),
        (b"#!/bin/none\n", "its interpreter /bin/none isn't there", errno.ENOENT),
        (ELF, "its interpreter /lib/ld-none|Exec format error|its interpreter", None),
        (b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark", errno.ENOEXEC),
        (b"echo hi\n", "Exec format error", errno.ENOEXEC),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
async def test_an_exec_that_fails_says_why(
    spawner: Spawner, data: bytes, text: str, number: int | None, by_path: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "program.sh", data)
    program = "program.sh" if by_path else path
    plan = plan_unjailed(Program([program], {"PATH": str(tmp_path)}, "/"), probe.read_host(), Limits())

    with pytest.raises(StepFailed, match=text) as failure:
        await spawner.spawn(plan)

    assert number is None or failure.value.errno == number
