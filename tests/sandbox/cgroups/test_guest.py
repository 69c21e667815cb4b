"""Version 2 for real, in a guest kernel: tests of this host that hold there too, and hosts where it can't be had."""

import os
import re
import sys

import pytest

from tests.support.guest import RunInGuest

REAL, WAITING = "tests/sandbox/cgroups/test_real.py", "tests/sandbox/cgroups/test_waiting_groups.py"
# A user may do less than root with groups that are delegated to it, so the whole file is run as one. As root come those
# in which root could be spared by Linux, or is in groups of others.
AS_ROOT = [
    f"{REAL}::test_{name}"
    for name in (
        "what_is_in_force_is_what_was_asked",
        "a_memory_hog_is_killed_at_its_limit_and_the_evidence_says_so",
        "a_fork_bomb_is_stopped_at_the_limit",
        "a_bomb_is_killed_with_what_other_kernels_lack",
        "a_clone_is_born_inside_where_the_kernel_has_that",
        "what_a_killed_kernel_left_is_swept_and_what_a_living_one_has_is_not",
    )
]
# What depends on the user or the kernel, with all walls; that jails are counted, replaced and ended is the same here.
AHEAD = [
    f"tests/sandbox/start/test_ahead.py::test_{name}"
    for name in (
        "its_layers_and_files_are_those_of_one_built_on_demand[strict]",
        "one_with_a_filtered_network_is_built_ahead_with_its_route[strict]",
        "a_command_enters_a_jail_by_a_process_that_was_cloned_ahead",
        "pid_1_has_the_walls_of_the_program[strict-ahead]",
        "a_program_is_in_its_groups_with_its_pid_1",
    )
]
NOT_SKIPPED = (REAL, WAITING)
# On a kernel of another age, whose files can't be mapped and which has no loop devices.
WITHOUT_MAPS = (
    "tests/sandbox/test_sources.py::test_a_name_that_was_opened_once_is_not_looked_up_again",
    "tests/sandbox/test_sources.py::test_where_files_cannot_be_mapped_a_workspace_is_refused_and_code_is_shown_as_it_is",
    "tests/sandbox/hosts/test_workspaces.py::test_what_is_kept_is_there_in_the_next_life",
    "tests/sandbox/hosts/test_workspaces.py::test_kept_files_of_another_user_are_no_workspace_of_root_inside",
)
# Jails that wait in groups of root's: tests/system/sandboxes/test_jail_guest.py.
INSIDE = {
    "root": (*AS_ROOT, *WITHOUT_MAPS),
    "user": (REAL, WAITING, *AHEAD),
}
# Two hundred of anything take minutes; what may not be killed is told by a file of the test's own, whatever the kernel.
OPTIONS = (
    "-rA",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
    "-k",
    "not two_hundred and not may_not_be_killed",
)
VERDICT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) (?:\[\d+\] )?(tests/[\w/]+\.py)", re.MULTILINE)
TELL = """
from agentos.sandbox.cgroups.discover import discover_here, open_root
made = open_root(discover_here())
print(made.root and made.root.version, sorted(made.controllers))
for one in made.missing: print(one.limit, "|", one.reason, "|", one.remedy)
if made.root: made.root.remove()
"""


@pytest.mark.parametrize("user", INSIDE)
def test_what_holds_here_holds_there(guest: RunInGuest, user: str) -> None:
    ended = guest(sys.executable, "-m", "pytest", *OPTIONS, *INSIDE[user], user=user == "user", timeout=600)

    told = ended.out + ended.err
    for file in {name.partition("::")[0] for name in INSIDE[user]}:
        verdicts = {verdict for verdict, where in VERDICT.findall(ended.out) if where == file}
        assert "PASSED" in verdicts, f"{file}\n{told}"
        assert verdicts <= ({"PASSED"} if file in NOT_SKIPPED else {"PASSED", "SKIPPED"}), f"{file}\n{told}"
    assert ended.code == 0, told


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
def test_a_delegated_scope_gives_all_controllers_to_us_and_our_children(guest: RunInGuest, user: bool) -> None:
    ended = guest("sh", "-c", 'sleep 60 & exec "$@"', "sh", sys.executable, "-c", TELL, user=user)

    assert ended.out == "2 ['cpu', 'memory', 'pids']\n", ended.err


def test_a_scope_shared_with_other_processes_is_left_alone_and_they_are_named(guest: RunInGuest) -> None:
    ended = guest("sh", "-c", '"$@"; cat /proc/self/cgroup', "sh", sys.executable, "-c", TELL)

    assert ended.out.startswith("None []\n"), ended.out + ended.err
    assert re.search(r"cpu \| .*command.scope is shared with other processes: \d+ \(sh\) \| .*systemd-run", ended.out)
    assert ended.out.endswith("0::/guest.slice/command.scope\n")


def test_a_user_without_delegated_control_groups_is_told_how_to_get_them(guest: RunInGuest) -> None:
    ended = guest(sys.executable, "-c", TELL, user=True, delegate=False)

    assert ended.out.startswith("None []\n"), ended.out + ended.err
    assert ended.out.count("can't be written by uid 1000") == 3
    assert ended.out.count("systemd-run --user --scope -p Delegate=yes") == 3


def test_hidden_control_groups_are_not_promised(guest: RunInGuest) -> None:
    ended = guest(sys.executable, "-c", TELL, hide=("/sys/fs/cgroup",))

    assert ended.out.startswith("None []\n"), ended.out + ended.err
    assert ended.out.count("isn't visible in any cgroup2 mount") == 3


def test_what_the_guest_writes_is_forgotten(guest: RunInGuest, tmp_path: object) -> None:
    ended = guest("sh", "-c", f'echo gone > "{tmp_path}/file" && cat "{tmp_path}/file"; exit 7')

    assert (ended.code, ended.out) == (7, "gone\n"), ended.err
    assert not os.path.exists(f"{tmp_path}/file")
