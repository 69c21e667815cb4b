"""Version 1's files as kernels other than this host's have them, laid out in ordinary directories."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agentos.sandbox.cgroups.v1 import Group
from agentos.sandbox.cgroups.values import CgroupError, Evidence, Limits

MIB = 1 << 20
UNLIMITED = 9223372036854771712


def lay(directory: Path, files: Mapping[str, object]) -> Path:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")
    return directory


def memory(directory: Path, limit: int, peak: int, killed: int = 0, refused: int = 0) -> Path:
    return lay(
        directory,
        {
            "memory.limit_in_bytes": limit,
            "memory.max_usage_in_bytes": peak,
            "memory.failcnt": refused,
            "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}",
        },
    )


def evidence(directory: Path) -> Evidence:
    return Group({"memory": str(directory)}).evidence()


@pytest.mark.parametrize(("peak", "refused"), [(32 * MIB, 0), (32 * MIB - 4096 * 8, 0), (20 * MIB, 3)])
def test_a_limit_that_was_reached_explains_a_kill(tmp_path: Path, peak: int, refused: int) -> None:
    group = memory(tmp_path / "group", 32 * MIB, peak, killed=1, refused=refused)

    assert evidence(group).describe() == ("memory limit 32M reached",)


def test_a_limit_that_only_dropped_caches_explains_nothing(tmp_path: Path) -> None:
    group = memory(tmp_path / "group", 32 * MIB, 32 * MIB, refused=100)

    assert evidence(group) == Evidence()


def test_a_parent_at_its_limit_is_not_blamed_for_a_kill_at_its_childs(tmp_path: Path) -> None:
    parent = memory(tmp_path / "parent", 64 * MIB, 64 * MIB, refused=9)
    child = memory(parent / "child", 32 * MIB, 32 * MIB, killed=1)

    assert evidence(parent).describe() == ()
    assert evidence(child).describe() == ("memory limit 32M reached",)


def test_a_grandchild_killed_for_its_grandparents_limit_is_told_apart(tmp_path: Path) -> None:
    above = memory(tmp_path / "above", 64 * MIB, 64 * MIB)
    middle = memory(above / "middle", UNLIMITED, 40 * MIB)
    below = memory(middle / "below", 60 * MIB, 40 * MIB, killed=2)

    assert evidence(above).out_of_memory
    assert evidence(middle) == Evidence()
    assert evidence(below) == Evidence(memory_limit=60 * MIB, killed_above=2)


def test_without_cpuacct_throttling_is_counted_in_turns(tmp_path: Path) -> None:
    cpu = lay(tmp_path / "cpu", {"cpu.stat": "nr_periods 10\nnr_throttled 9\nthrottled_time 800"})
    used = lay(tmp_path / "cpuacct", {"cpuacct.usage": 200})

    assert Group({"cpu": str(cpu)}).evidence().throttled == 0.9
    assert Group({"cpu": str(cpu), "cpuacct": str(used)}).evidence().throttled == 0.8


def test_a_cpu_share_is_cut_to_the_smallest_around_it(tmp_path: Path) -> None:
    top = lay(tmp_path / "top", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100_000})
    host = lay(top / "host", {"cpu.cfs_quota_us": 25_000, "cpu.cfs_period_us": 50_000})
    own = lay(host / "own", {"cpu.cfs_quota_us": 70_000, "cpu.cfs_period_us": 100_000})
    child = lay(own / "child", {"cpu.cfs_quota_us": "", "cpu.cfs_period_us": ""})

    Group({"cpu": str(child)})._write_limits(Limits(cpu=4.0))

    assert Group({"cpu": str(child)}).read_limits().cpu == 0.5


def test_without_a_limit_on_swap_the_group_is_kept_from_swapping_as_far_as_can_be(tmp_path: Path) -> None:
    group = memory(tmp_path / "group", UNLIMITED, 0)
    for name, before in (("memory.swappiness", 60), ("memory.use_hierarchy", 0)):
        (group / name).write_text(f"{before}\n")

    Group({"memory": str(group)})._write_limits(Limits(memory=32 * MIB))

    assert (group / "memory.swappiness").read_text().startswith("0")
    assert (group / "memory.use_hierarchy").read_text().startswith("1")
    assert Group({"memory": str(group)}).read_limits().swap is None


def test_without_a_freezer_freezing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match="no freezer controller"):
        Group({"memory": str(tmp_path)}).freeze()
