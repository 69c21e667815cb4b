"""The control groups around the kernel."""

from pathlib import Path

import pytest

from agentos.sandbox.cgroups.surrounding import find_full_group


def make_group(directory: Path, most: str, now: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pids.max").write_text(f"{most}\n")
    (directory / "pids.current").write_text(f"{now}\n")
    (directory / "cgroup.procs").touch()


@pytest.mark.parametrize(
    ("prefix", "mount"),
    [
        ("0::", "cgroup2 cgroup2 rw"),
        ("7:pids:", "cgroup cgroup rw,pids"),
        ("7:misc,pids:", "cgroup cgroup rw,misc,pids"),
    ],
)
def test_a_full_group_of_the_kernel_is_found_and_so_is_one_above(tmp_path: Path, prefix: str, mount: str) -> None:
    slice_ = tmp_path / "agentos.slice"
    own = f"3:memory:/elsewhere\n{prefix}/agentos.slice/kernel.service\n"
    mounts = f"36 25 0:31 / {tmp_path} rw - {mount}\n"
    make_group(slice_, "max", 90)
    make_group(slice_ / "kernel.service", "100", 99)
    assert find_full_group(own, mounts) is None

    make_group(slice_ / "kernel.service", "100", 100)
    assert find_full_group(own, mounts) == (f"{slice_}/kernel.service/pids.max", 100)

    make_group(slice_ / "kernel.service", "max", 100)
    make_group(slice_, "64", 65)
    assert find_full_group(own, mounts) == (f"{slice_}/pids.max", 64)
