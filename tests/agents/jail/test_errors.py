"""What the caller is told where the kernel, not the agent, has reached a limit."""

import errno
import os
from pathlib import Path

import pytest

from agentos.agents.jail.errors import explain, find_full_group
from agentos.agents.spec import AgentSpec
from agentos_sdk.errors import Unavailable


def make_group(directory: Path, most: str, now: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pids.max").write_text(f"{most}\n")
    (directory / "pids.current").write_text(f"{now}\n")


@pytest.mark.parametrize("prefix", ["0::", "7:pids:"])
def test_a_full_group_of_the_kernel_is_found_and_so_is_one_above(tmp_path: Path, prefix: str) -> None:
    slice_ = tmp_path / ("pids" if "pids" in prefix else "") / "agentos.slice"
    own = f"3:cpu:/elsewhere\n{prefix}/agentos.slice/kernel.service\n"
    make_group(slice_, "max", 90)
    make_group(slice_ / "kernel.service", "100", 99)
    assert find_full_group(own, tmp_path) is None

    make_group(slice_ / "kernel.service", "100", 100)
    assert find_full_group(own, tmp_path) == (slice_ / "kernel.service" / "pids.max", 100)

    make_group(slice_ / "kernel.service", "max", 100)
    make_group(slice_, "64", 65)
    assert find_full_group(own, tmp_path) == (slice_ / "pids.max", 64)


@pytest.mark.parametrize(("number", "fix"), [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max")])
def test_where_no_descriptor_is_left_the_fix_is_told(number: int, fix: str) -> None:
    told = explain(OSError(number, os.strerror(number), "/proc/7/ns/uts"), AgentSpec("a", command=("true",)))

    assert str(told).startswith(f"/proc/7/ns/uts: {os.strerror(number)}: ")
    assert fix in str(told)
    assert told.error is Unavailable
