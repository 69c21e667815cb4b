"""What a refusal is put down to, for hosts of which there is none here."""

import errno
import os
import sys

from agentos.sandbox.report import remedies
from agentos.sandbox.report.remedies import Surroundings, find_remedy
from tests.support.runs.rows import each_row

UBUNTU = {"kernel.apparmor_restrict_unprivileged_userns": "1", "user.max_user_namespaces": "31000"}
DEBIAN_10 = {"kernel.unprivileged_userns_clone": "0"}


@each_row(
    ("step", "error", "around", "said"),
    [
        ("TakeIdentity", errno.EPERM, Surroundings(1000, UBUNTU), "AppArmor profile that `agentos doctor` prints"),
        ("ForbidNamespaces", errno.EACCES, Surroundings(1000, UBUNTU), "restrict_unprivileged_userns=0"),
        ("Clone", errno.EPERM, Surroundings(1000, DEBIAN_10), "sysctl kernel.unprivileged_userns_clone=1"),
        ("Clone", errno.EPERM, Surroundings(1000, chroot=True), "chroot: Linux refuses"),
        ("Clone", errno.EPERM, Surroundings(1000, filtered=True), "seccomp=unconfined"),
        ("Clone", errno.ENOSYS, Surroundings(1000, filtered=True), "seccomp=unconfined"),
        ("Clone", errno.ENOSYS, Surroundings(1000), "Linux 5.14"),
        ("Clone", errno.ENOSPC, Surroundings(0, {"user.max_user_namespaces": "0"}), "user.max_user_namespaces="),
        ("Clone", errno.ENOSPC, Surroundings(0, {"user.max_ipc_namespaces": "0"}), "user.max_ipc_namespaces="),
        ("Clone", errno.ENOSPC, Surroundings(0, {"user.max_user_namespaces": "9"}), "outside this container"),
        ("Clone", errno.EAGAIN, Surroundings(1000, processes="20"), "now 20"),
        ("MountProc /proc", errno.EPERM, Surroundings(0, covered=("/proc/kcore",)), "systempaths=unconfined"),
        ("MountRoot", errno.EACCES, Surroundings(0, apparmor="docker-default (enforce)"), "apparmor=unconfined"),
        ("zygote", 0, Surroundings(0, proc=False), "mount proc at /proc"),
        ("Landlock", errno.EOPNOTSUPP, Surroundings(0, lsm="yama,bpf"), "lsm= (now yama,bpf)"),
        ("Landlock", errno.ENOSYS, Surroundings(0), "CONFIG_SECURITY_LANDLOCK"),
        ("Landlock", errno.ENOSYS, Surroundings(0, filtered=True), "must allow landlock_create_ruleset"),
    ],
)
def test_a_refusal_names_the_knob(step: str, error: int, around: Surroundings, said: str) -> None:
    assert said in find_remedy(step, os.strerror(error), error, around)


@each_row(
    ("step", "error", "around"),
    [
        ("TakeIdentity", errno.EPERM, Surroundings(0, {**UBUNTU, **DEBIAN_10})),  # neither is in root's way
        ("MountProc /proc", errno.EPERM, Surroundings(0)),
        ("MountRoot", errno.EACCES, Surroundings(0, apparmor="unconfined (unconfined)")),
        ("Bind /usr", errno.ENOENT, Surroundings(0)),
        ("Execute /bin/true", errno.ENOEXEC, Surroundings(0, filtered=True)),
    ],
)
def test_nothing_is_advised_where_it_would_be_a_guess(step: str, error: int, around: Surroundings) -> None:
    assert find_remedy(step, os.strerror(error), error, around) == ""


def test_a_uid_that_is_not_mapped_here_is_told_with_the_map() -> None:
    text = "/proc/7/gid_map: Operation not permitted"

    assert "its uid_map is 0 1000 1" in find_remedy("Clone", text, errno.EPERM, Surroundings(0, ids="0 1000 1"))


def test_the_profile_is_for_the_interpreter_behind_all_links() -> None:
    lines = remedies.apparmor_profile().splitlines()

    assert f"profile agentos-python {os.path.realpath(sys.executable)} flags=(unconfined) {{" in lines
    assert "  userns," in lines


def test_the_surroundings_of_this_process_are_read() -> None:
    around = remedies.read_surroundings()

    assert (around.uid, around.chroot) == (os.geteuid(), False)
    assert around.settings["user.max_user_namespaces"].isdigit()
    assert around.ids
