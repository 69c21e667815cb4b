"""The kernel under control groups of version 2, in a scope delegated to it, in a guest: as root and as a user."""

import os
import re
import sys
from collections.abc import Sequence

import pytest

from tests.support.guest import RunInGuest
from tests.support.kernel import running
from tests.system.jails import group_of, said

RUNNER = """
import os, sys
from pathlib import Path
import pytest
from tests.support import kernel

def put(path, text):
    Path(path).write_text(text)

scope = os.environ["CGROUP2_SCOPE"]
os.mkdir(f"{scope}/tests")
put(f"{scope}/tests/cgroup.procs", "0")
put(f"{scope}/cgroup.subtree_control", "+cpu +memory +pids")
kernel.SCOPE = scope
sys.exit(pytest.main(sys.argv[1:]))
"""
FOR_BOTH = (
    "sandboxes/test_jail_record.py::test_limits_by_control_groups_are_in_their_files",
    "sandboxes/test_jail_children.py::test_a_childs_control_group_lies_in_its_parents",
    "sandboxes/test_jail_children.py::test_children_end_with_their_parent_and_leave_no_control_group",
    "sandboxes/test_jail_endings.py::test_a_memory_hog_is_killed_and_told_at_which_limit",
    "sandboxes/test_jail_kills.py::test_a_killed_kernel_leaves_nothing_at_all",
    "sandboxes/test_jail_guest.py::test_here_version_2_is_used_and_the_kernel_sits_in_a_leaf",
)
# What the control groups bound is the same for a user: tests/sandbox/cgroups/test_guest.py runs test_real.py as both.
AS_ROOT = (
    *FOR_BOTH,
    "events/test_metrics.py::test_the_figures_are_those_of_the_control_group_s_files_and_of_proc",
    "sandboxes/test_jail_children.py::test_a_childs_memory_counts_as_its_parents",
    "sandboxes/test_jail_children.py::test_a_parents_processes_bound_those_of_its_children",
    "sandboxes/test_jail_endings.py::test_an_agent_of_which_one_process_was_killed_for_memory_ends_as_a_whole",
    "sandboxes/test_jail_endings.py::test_refused_forks_are_told_with_the_limit",
    "sandboxes/test_jail_endings.py::test_a_throttled_agent_is_told_how_much_of_its_time",
)
ON_A_DISK = (
    "overlays/test_overlays.py::test_nothing_is_in_the_directory_until_it_is_applied_and_it_can_be_undone",
    "snapshots/test_snapshots.py::test_an_agent_goes_back_to_a_snapshot_that_was_taken_while_it_ran",
    "images/test_build.py::test_what_a_run_changes_is_in_the_image[files are made, changed and removed]",
    "images/test_build.py::test_before_linux_6_6_an_agent_in_an_image_is_told_what_it_needs",
)


@pytest.mark.usefixtures("kernels")
def test_here_version_2_is_used_and_the_kernel_sits_in_a_leaf() -> None:
    if "CGROUP2_SCOPE" not in os.environ:
        pytest.skip("meant for the guest, where the test below runs it")
    with running() as kernel, kernel.client() as client:
        kernel.wait_line("isolation standard: .*limits by cgroup v2")
        with open(f"/proc/{kernel.pid}/cgroup") as file:
            assert re.search(r"/kernel-\w+/kernel$", file.read().rstrip())
        code = "import json; print(json.dumps(open('/proc/self/cgroup').read().split()), flush=True)"
        assert said(client, kernel, "looks", code) == ["0::/"]  # it doesn't see where its group lies
        [agent] = client.list_agents()
        group = group_of(agent["pid"], "memory")
        assert (group / "memory.oom.group").read_text() == "1\n"
        assert group.parent.name.startswith("agentos-")
        assert (group / "self" / "cgroup.procs").read_text()


@pytest.mark.parametrize(
    ("chosen", "disk", "user"),
    [(AS_ROOT, False, False), (FOR_BOTH, False, True), (ON_A_DISK, True, False)],
    ids=["root", "user", "disk"],
)
def test_what_holds_here_holds_under_version_2(
    guest: RunInGuest, chosen: Sequence[str], disk: bool, user: bool
) -> None:
    if "CGROUP2_SCOPE" in os.environ:
        pytest.skip("this is the guest")
    tests = [f"tests/system/{name}" for name in chosen]
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")

    ended = guest(sys.executable, "-c", RUNNER, *options, *tests, user=user, disk=disk)

    assert ended.code == 0, ended.out + ended.err
    assert re.search(rf"^{len(chosen)} passed", ended.out, re.MULTILINE), ended.out  # and none skipped
