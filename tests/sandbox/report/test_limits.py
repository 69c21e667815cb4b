"""What is said of limits: only what was read back, and why something isn't in force."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.cgroups.discover import MissingLimit, discover_here, open_root
from agentos.sandbox.cgroups.values import EnforcedLimits, Evidence
from agentos.sandbox.cgroups.values import Limits as CgroupLimits
from agentos.sandbox.policy import MIB, Limits
from agentos.sandbox.report.limits import SHIM_PROCESSES, ObservedLimits, describe_ending, limit_layers
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.watch import disk
from agentos.sandbox.watch import memory as memory_watch
from agentos.sandbox.watch.disk import Image, Tmpfs, read_tmpfs
from agentos.sandbox.watch.tree_usage import Usage
from agentos_sdk.values import Layer
from tests.sandbox.jail import kill, line, python
from tests.support.runs.rows import each_row

ASKED = Limits(memory=256 * MIB, max_pids=64, cpu_quota=50_000, cpu_weight=100, disk=16 * MIB, inodes=100)
IN_FORCE = EnforcedLimits(memory=256 * MIB, swap=0, pids=65, cpu=0.5, weight=100)
RLIMITS = {"Max data size": (str(512 * MIB),) * 2, "Max processes": ("65", "65")}
NOTHING = tuple(
    MissingLimit(what, "the scope isn't delegated", "systemd-run --scope") for what in ("cpu", "memory", "pids")
)
TMPFS = Tmpfs("rw,size=16384k,nr_inodes=100,mode=755")
KILLED, EXITED = Status(None, 9), Status(0, None)


def active(found: ObservedLimits, asked: Limits = ASKED) -> dict[str, bool]:
    return {name: layer.active for name, layer in limit_layers(asked, found).items()}


def test_a_cgroups_limits_are_those_read_back() -> None:
    second = limit_layers(ASKED, ObservedLimits(IN_FORCE, 2, workspace=TMPFS))
    first = limit_layers(ASKED, ObservedLimits(IN_FORCE, 1, workspace=TMPFS))

    assert second["memory"] == Layer(256 * MIB, True, "cgroup v2 memory.max", "memory.max=268435456 swap=0", "")
    assert first["memory"].mechanism == "cgroup v1 memory.limit_in_bytes"
    assert second["pids"] == Layer(64, True, "cgroup v2 pids.max", "pids.max=65", "")
    evidence = "cpu.max: 50 % of a CPU, cpu.weight: weight 100"
    assert second["cpu"] == Layer(50_000, True, "cgroup v2 cpu.max", evidence, "")
    assert second["disk"] == Layer(16 * MIB, True, "tmpfs size=16384k,nr_inodes=100", TMPFS.options, "")


def test_memory_that_may_be_swapped_out_is_told() -> None:
    layer = limit_layers(ASKED, ObservedLimits(EnforcedLimits(memory=256 * MIB, swap=None), 1))["memory"]

    assert (layer.active, layer.reason) == (True, "swapped memory comes on top of it: swap can't be limited here")


def test_without_a_cgroup_it_is_told_what_does_its_work_and_what_is_not_done() -> None:
    layers = limit_layers(
        ASKED, ObservedLimits(missing=NOTHING, rlimits=RLIMITS, watched=True, workspace=Usage(8192, 2))
    )

    assert {name: (layer.active, layer.mechanism) for name, layer in layers.items()} == {
        "memory": (True, "watcher + RLIMIT_DATA"),
        "pids": (True, "RLIMIT_NPROC in a user namespace of its own"),
        "cpu": (False, ""),
        "disk": (True, "watched"),
    }
    assert layers["memory"].reason.startswith("watched, may overshoot")
    assert layers["cpu"].reason == (
        "no cgroup delegated: CPU shares can't be limited (the scope isn't delegated); systemd-run --scope"
    )


def test_a_watched_workspace_says_that_files_may_slip_past_its_limit_between_two_counts() -> None:
    layer = limit_layers(ASKED, ObservedLimits(workspace=Usage(8192, 2)))["disk"]

    start, looks = layer.evidence.split("; ")
    assert start == "8K in 2 inodes at the start"
    assert (
        looks
        == f"bytes and inodes counted every {disk.MIN_INTERVAL:g} to {disk.MAX_INTERVAL:g} s, limit 16M and 100 inodes"
    )
    assert layer.reason == "watched, may overshoot: between two counts any number of bytes and files can be written"


def test_no_limit_is_claimed_without_a_mechanism_for_it() -> None:
    assert active(ObservedLimits()) == {"memory": False, "pids": False, "cpu": False, "disk": False}
    assert not active(ObservedLimits(rlimits=RLIMITS))["memory"]  # each process alone isn't all of them
    assert not active(ObservedLimits(watched=True))["memory"]  # without the limit on each a watcher comes too late
    assert all(layer.reason for layer in limit_layers(ASKED, ObservedLimits()).values())


limits = st.builds(
    Limits,
    memory=st.integers(1, 1 << 40),
    max_pids=st.integers(1, 1000),
    cpu_quota=st.integers(1000, 800_000),
    disk=st.integers(1, 1 << 40),
    inodes=st.integers(1, 1 << 20),
)


@given(asked=limits, enforced=limits)
def test_a_limit_is_only_said_to_be_active_if_no_more_is_let_through(asked: Limits, enforced: Limits) -> None:
    group = EnforcedLimits(
        enforced.memory, 0, enforced.max_pids + SHIM_PROCESSES, enforced.cpu_quota / 100_000, enforced.cpu_weight
    )
    found = ObservedLimits(group, 2, workspace=Image(enforced.disk, enforced.inodes))

    said = active(found, asked)

    assert said["memory"] == (enforced.memory <= asked.memory)
    assert said["pids"] == (enforced.max_pids <= asked.max_pids)
    if not asked.cpu_quota < enforced.cpu_quota <= asked.cpu_quota * 1.002:  # the kernel rounds to its own units
        assert said["cpu"] == (enforced.cpu_quota <= asked.cpu_quota)
    inodes = asked.inodes + (asked.disk >> 20) + 16  # an ext4 fills up the blocks of its tables
    assert said["disk"] == (enforced.disk <= -(-asked.disk // 4096) * 4096 and enforced.inodes <= inodes)
    assert all(layer.active or layer.reason for layer in limit_layers(asked, found).values())


def test_inodes_that_mkfs_has_rounded_up_are_told() -> None:
    asked = Limits(disk=10 << 30, inodes=16384)
    image = limit_layers(asked, ObservedLimits(workspace=Image(10 << 30, 16640)))["disk"]
    tmpfs = limit_layers(asked, ObservedLimits(workspace=Tmpfs("size=10485760k,nr_inodes=16640")))["disk"]

    assert (image.active, image.reason) == (True, "ext4 has rounded 16384 inodes up to 16640")
    assert (tmpfs.active, tmpfs.reason) == (False, "inodes: the kernel enforces 16640, not 16384")


@each_row(
    ("status", "evidence", "sentence"),
    [
        (EXITED, Evidence(), None),
        (KILLED, Evidence(memory_limit=256 * MIB), None),
        (KILLED, Evidence(256 * MIB, out_of_memory=True), "killed: memory limit 256M reached"),
        (Status(137, None), Evidence(256 * MIB, out_of_memory=True), "killed: memory limit 256M reached"),
        (EXITED, Evidence(256 * MIB, out_of_memory=True), "memory limit 256M reached: processes of it were killed"),
        (EXITED, Evidence(pids_limit=65, forks_refused=3), "fork refused: 64 processes"),
        (EXITED, Evidence(pids_limit=20, forks_refused=3), "fork refused: 20 processes"),
        (EXITED, Evidence(throttled=0.876), "throttled 87 % of the time"),
        (
            KILLED,
            Evidence(256 * MIB, 65, out_of_memory=True, forks_refused=1, throttled=0.5),
            "killed: memory limit 256M reached; fork refused: 64 processes; throttled 50 % of the time",
        ),
        (Status(None, 25), Evidence(), "killed: limit 256M of one file reached"),
        (KILLED, Evidence(killed_above=1), "killed for memory by a limit above its own, or by the host"),
    ],
)
def test_the_end_is_told_from_what_was_counted(status: Status, evidence: Evidence, sentence: str | None) -> None:
    assert describe_ending(status, ASKED, evidence) == sentence


def test_a_watchers_verdict_is_the_reason() -> None:
    memory = memory_watch.Exceeded(256 * MIB, 270 * MIB, "PSS")
    assert describe_ending(KILLED, ASKED, None, memory) == "killed: memory limit 256M reached (watched: PSS 270M)"
    full = disk.exceeded_limit(Usage(257 * MIB, 1), 256 * MIB, 10)
    assert describe_ending(KILLED, ASKED, Evidence(), full) == "killed: disk limit 256M reached in its workspace"


def test_without_a_counter_no_limit_is_named_as_the_reason() -> None:
    assert describe_ending(Status(1, None), ASKED) is None


async def test_a_real_sandbox_without_a_cgroup_has_what_is_said(spawner: Spawner) -> None:
    code = """
import os, signal, sys
made = 0
try:
    while True:
        if os.fork() == 0: signal.pause()
        made += 1
except OSError: print(made, flush=True)
signal.pause()
"""
    asked = Limits(memory=128 * MIB, max_pids=10, disk=3 * MIB, inodes=50)
    sandbox = await spawner.spawn(python(code, limits=asked))
    try:
        forks = int(await line(sandbox))
        found = ObservedLimits(rlimits=sandbox.observed.limits, watched=True, workspace=read_tmpfs(sandbox.pid))
        layers = limit_layers(asked, found)
    finally:
        await kill(sandbox)

    assert [name for name, layer in layers.items() if layer.active] == ["memory", "pids", "disk"]
    assert (layers["pids"].evidence, forks) == ("Max processes=11", 9)  # and the program itself
    assert layers["disk"].mechanism == "tmpfs size=3072k,nr_inodes=50"


def test_a_real_group_is_read_back_as_asked() -> None:
    made = open_root(discover_here())
    if made.root is None or made.missing:
        if made.root is not None:
            made.root.remove()
        why = made.missing[0]
        if os.geteuid() == 0 and "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail(why.reason)
        pytest.skip(f"not all control groups: {why.reason}; {why.remedy}")
    try:
        group = made.root.create_child("agent-1", CgroupLimits(ASKED.memory, ASKED.max_pids + SHIM_PROCESSES, 0.5, 100))
        layers = limit_layers(ASKED, ObservedLimits(group.read_limits(), group.version, workspace=TMPFS))
    finally:
        made.root.remove()

    assert all(layer.active for layer in layers.values())
    assert all(layer.mechanism.startswith(f"cgroup v{group.version} ") for layer in list(layers.values())[:3])
