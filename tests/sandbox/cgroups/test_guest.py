"""Version 2 for real, in a guest kernel: what ``test_cgroups_real`` attacks there, and hosts where it can't be had."""

import os
import re
import sys

import pytest

from tests.support.guest import RunInGuest

REAL = "tests/sandbox/cgroups/test_real.py"
WAITING = ("tests/sandbox/test_waiting_groups.py", "tests/system/test_waiting_jails.py")
TELL = """
from agentos.sandbox.cgroups.discover import discover_here, open_root
made = open_root(discover_here())
print(made.root and made.root.version, sorted(made.controllers))
for one in made.missing: print(one.limit, "|", one.reason, "|", one.remedy)
if made.root: made.root.remove()
"""


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
@pytest.mark.slow
def test_every_limit_holds_under_version_2(guest: RunInGuest, user: bool) -> None:
    ended = guest(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", REAL, user=user)

    assert ended.code == 0, ended.out + ended.err
    assert re.search(r"^\d\d passed in", ended.out, re.MULTILINE), ended.out  # and none skipped


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
@pytest.mark.slow
def test_jails_wait_under_version_2(guest: RunInGuest, user: bool) -> None:
    ended = guest(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WAITING, user=user)

    assert ended.code == 0, ended.out + ended.err
    assert re.search(r"^\d\d passed in", ended.out, re.MULTILINE), ended.out  # and none skipped


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
def test_a_delegated_scope_gives_all_controllers_to_us_and_our_children(guest: RunInGuest, user: bool) -> None:
    ended = guest("sh", "-c", 'sleep 60 & exec "$@"', "sh", sys.executable, "-c", TELL, user=user)

    assert ended.out == "2 ['cpu', 'memory', 'pids']\n", ended.err


def test_a_scope_shared_with_strangers_is_left_alone_and_says_with_whom(guest: RunInGuest) -> None:
    ended = guest("sh", "-c", '"$@"; cat /proc/self/cgroup', "sh", sys.executable, "-c", TELL)

    assert ended.out.startswith("None []\n"), ended.out + ended.err
    assert re.search(r"cpu \| .*command.scope is shared with other processes: \d+ \(sh\) \| .*systemd-run", ended.out)
    assert ended.out.endswith("0::/guest.slice/command.scope\n")


def test_a_user_to_whom_nothing_is_delegated_is_told_how_to_get_it(guest: RunInGuest) -> None:
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
