"""The kernel under control groups of version 2, in a scope delegated to it, in a guest: as root and as a user."""

import os
import re
import sys
from collections.abc import Sequence

import pytest

from tests.support.guest import RunInGuest
from tests.support.kernel import Kernel, killing_new_agents
from tests.system.jails import group_of, said

# A start takes a guest more than a second, so the tests of all files share one kernel if they ask for the fixture.
RUNNER = """
import contextlib, os, sys
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
once, shared, started = contextlib.ExitStack(), kernel.shared, []

@contextlib.contextmanager
def shared_by_all():
    if not started:
        started.append(once.enter_context(shared()))
    yield started[0]

kernel.shared = shared_by_all
with once:
    code = pytest.main(sys.argv[1:])
sys.exit(code)
"""
# To import all plugins, and to rewrite assertions, takes the guest half of pytest's CPU time.
ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "pytest_trio.plugin", "--assert=plain")
FOR_BOTH = (
    "sandboxes/test_jail_kills.py::test_a_killed_kernel_leaves_nothing_at_all",
    "sandboxes/test_jail_guest.py::test_here_version_2_is_used_and_the_kernel_sits_in_a_leaf",
)
# A user's groups are delegated to it: what is made in them, and goes, is that of root as well.
AS_USER = (
    "sandboxes/test_jail_children.py::test_a_childs_control_group_lies_in_its_parents",
    "sandboxes/test_jail_children.py::test_children_end_with_their_parent_and_leave_no_control_group",
    *FOR_BOTH,
)
# What the control groups bound, and tell of it, is tested without a kernel: tests/sandbox/cgroups/test_guest.py.
AS_ROOT = (
    "events/test_metrics.py::test_the_figures_are_those_of_the_control_group_s_files_and_of_proc",
    "sandboxes/test_jail_endings.py::test_a_memory_hog_is_killed_and_told_at_which_limit",
    *FOR_BOTH,
    "sandboxes/test_waiting_jails.py::test_the_next_agent_gets_it_with_the_same_layers",
    "sandboxes/test_waiting_jails.py::test_the_successor_of_a_killed_agent_gets_it",
    "sandboxes/test_waiting_jails.py::test_a_memory_limit_that_the_jail_exceeds_itself_is_named",
    "sandboxes/test_waiting_jails.py::test_none_outlives_a_killed_kernel",
    # On a disk, as its overlay needs one:
    "snapshots/test_snapshots.py::test_an_agent_goes_back_to_a_snapshot_that_was_taken_while_it_ran",
    "images/test_build.py::test_what_a_run_changes_is_in_the_image[files are made, changed and removed]",
)
BEFORE_6_6 = ("images/test_build.py::test_before_linux_6_6_an_agent_in_an_image_is_told_what_it_needs",)
SINCE_6_6 = (  # make proof-guests
    "overlays/test_overlays.py::test_nothing_is_in_the_directory_until_it_is_applied_and_it_can_be_undone",
    "overlays/test_overlays.py::test_the_work_survives_a_restart_of_the_agent_and_a_kill_of_the_kernel",
    "overlays/test_overlays.py::test_look_then_apply_by_the_command_line",
    "snapshots/test_snapshots.py::test_a_stopped_agent_is_sealed_and_goes_back_without_a_start",
    "snapshots/test_forks.py::test_forks_go_on_from_a_snapshot_apart_from_each_other",
    "images/test_agents.py::test_agents_run_in_their_images",
    "images/test_inside_root.py::test_root_inside_installs_packages_makes_users_and_becomes_them",
    "images/test_inside_root.py::test_files_have_the_owners_and_bits_of_the_image_and_one_user_owns_them_all",
    "images/test_inside_root.py::test_what_root_inside_changes_in_a_project_is_applied_without_its_ids_and_bits",
)
OF_USERS = (
    "overlays/test_overlays.py::test_nothing_is_in_the_directory_until_it_is_applied_and_it_can_be_undone",
    "images/test_agents.py::test_agents_run_in_their_images",
    *(
        f"images/test_inside_root.py::{name}"
        for name in (
            "test_root_inside_installs_packages_makes_users_and_becomes_them",
            "test_root_inside_is_a_block_of_ids_with_its_own_capabilities",
            "test_what_root_inside_makes_ends_with_its_life_and_is_nowhere_on_the_host",
            "test_what_root_inside_changes_in_a_project_is_applied_without_its_ids_and_bits",
            "test_a_kept_workspace_of_root_inside_keeps_owners_and_bits_and_gives_none_on_the_host",
        )
    ),
)


@pytest.mark.usefixtures("kernels")
def test_here_version_2_is_used_and_the_kernel_sits_in_a_leaf(request: pytest.FixtureRequest) -> None:
    if "CGROUP2_SCOPE" not in os.environ:
        pytest.skip("meant for the guest, where the test below runs it")
    kernel: Kernel = request.getfixturevalue("kernel")
    with killing_new_agents(kernel), kernel.client() as client:
        kernel.wait_line("isolation standard: .*limits by cgroup v2")
        with open(f"/proc/{kernel.pid}/cgroup") as file:
            assert re.search(r"/kernel-\w+/kernel$", file.read().rstrip())
        code = "import json; print(json.dumps(open('/proc/self/cgroup').read().split()), flush=True)"
        assert said(client, kernel, "looks", code) == ["0::/"]  # it doesn't see where its group lies
        [agent] = [one for one in client.list_agents() if one["name"] == "looks"]
        group = group_of(agent["pid"], "memory")
        assert (group / "memory.oom.group").read_text() == "1\n"
        assert group.parent.name.startswith("agentos-")
        assert (group / "self" / "cgroup.procs").read_text()


def test_what_holds_here_holds_under_version_2_as_root(guest: RunInGuest) -> None:
    if "CGROUP2_SCOPE" in os.environ:
        pytest.skip("this is the guest")
    check(guest, [*AS_ROOT, *(SINCE_6_6 if runs_images(guest) else BEFORE_6_6)], user=False, disk=True)


def test_what_holds_here_holds_under_version_2_as_a_user(guest: RunInGuest) -> None:
    if "CGROUP2_SCOPE" in os.environ:
        pytest.skip("this is the guest")
    check(guest, AS_USER, user=True, disk=False)


@pytest.mark.parametrize("sub_ids", [False, True], ids=["one id", "subordinate ids"])
def test_a_user_s_agents_run_in_images_as_users_and_as_root(guest: RunInGuest, sub_ids: bool) -> None:
    if "CGROUP2_SCOPE" in os.environ:
        pytest.skip("this is the guest")
    if not runs_images(guest):
        pytest.skip("NOT TESTED: the guest's Linux is older than 6.6 (make proof-guests has 6.12)")

    check(guest, OF_USERS, user=True, disk=True, sub_ids=sub_ids)


def runs_images(guest: RunInGuest) -> bool:
    """Whether Linux keeps attributes in memory, as it does since 6.6."""
    return tuple(map(int, guest("uname", "-r").out.split(".")[:2])) >= (6, 6)


def check(guest: RunInGuest, chosen: Sequence[str], user: bool, disk: bool, sub_ids: bool = False) -> None:
    """Run these tests in the guest; all pass, and none is skipped."""
    argv = [sys.executable, "-c", RUNNER, *OPTIONS, *(f"tests/system/{name}" for name in chosen)]

    ended = guest(*argv, user=user, disk=disk, sub_ids=sub_ids, env=ENV, timeout=600)

    assert ended.code == 0, ended.out + ended.err
    assert re.search(rf"^{len(chosen)} passed", ended.out, re.MULTILINE), ended.out
