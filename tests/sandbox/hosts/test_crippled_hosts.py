"""Hosts crippled on purpose: doctor says what is missing, that nothing else is, and which knob to turn."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.sandbox.report.levels import WALL_LAYERS
from agentos.sandbox.report.walls import LAYERS
from tests.support.commands import run_crippled
from tests.support.guest import RunInGuest
from tests.support.runs.rounds import some

ROOT = os.geteuid() == 0
HERE = Path(__file__).parents[3]
LIKE_DOCKER = ("--refuse", "clone3=ENOSYS", "--refuse", "unshare=EPERM", "--refuse", "mount=EPERM")

pytestmark = pytest.mark.usefixtures("spawner")  # a host that has no sandbox can't lose one


def report_of(done: "subprocess.CompletedProcess[bytes]") -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["level"] == "none" else 0)
    assert list(report["layers"]) == list(LAYERS)
    return report


def doctor(*options: str, **env: str) -> dict[str, Any]:
    return report_of(run_crippled(options, ["doctor", "--json"], HERE, {**os.environ, **env}))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """What is said where nothing was taken away, by the same way to get there."""
    report = doctor()
    assert report["level"] != "none"
    return report


def lost(report: dict[str, Any], whole: dict[str, Any]) -> set[str]:
    """The layers that stand otherwise than before."""
    return {name for name in LAYERS if report["layers"][name]["works"] != whole["layers"][name]["works"]}


def knobs(report: dict[str, Any], *names: str) -> set[str]:
    return {report["layers"][name]["knob"] for name in names}


def test_without_user_namespaces_there_is_no_wall_and_the_sysctl_is_named(whole: dict[str, Any]) -> None:
    report = doctor("--sysctl", "user.max_user_namespaces=0")

    asked = [name for name in WALL_LAYERS if report["layers"][name]["asked"]]
    assert not any(report["layers"][name]["works"] for name in asked)
    assert report["verdict"].startswith("none: user_ns, pid_ns, mount_ns and ")
    assert report["layers"]["user_ns"]["reason"] == "Clone: clone3: No space left on device"
    assert knobs(report, *asked) == {"sysctl user.max_user_namespaces=10000"}


def test_without_network_namespaces_it_is_that_wall_alone(whole: dict[str, Any]) -> None:
    report = doctor("--sysctl", "user.max_net_namespaces=0")

    assert lost(report, whole) == {"net_ns"}
    assert report["verdict"].startswith("none: net_ns not available")
    assert knobs(report, "net_ns") == {"sysctl user.max_net_namespaces=10000"}


def test_with_hidden_control_groups_the_cpu_is_not_promised(whole: dict[str, Any]) -> None:
    report = doctor("--hide", "/sys/fs/cgroup")

    assert report["level"] == "standard"
    assert "limits by rlimits, cpu not limited" in report["verdict"]
    assert lost(report, whole) <= {"cpu"}
    assert (report["layers"]["cpu"]["works"], report["layers"]["cpu"]["mechanism"]) == (False, "")
    assert report["layers"]["memory"]["mechanism"] == "watcher + RLIMIT_DATA"
    assert report["layers"]["pids"]["mechanism"] == "RLIMIT_NPROC in a user namespace of its own"
    assert all("visible" in report["layers"][name]["reason"] for name in ("memory", "pids", "cpu"))
    assert all(knob.startswith("mount ") for knob in knobs(report, "memory", "pids", "cpu"))


@pytest.mark.parametrize(
    "refused", ["landlock_create_ruleset=ENOSYS", "landlock_create_ruleset=EPERM", "landlock_restrict_self=EPERM"]
)
def test_landlock_behind_a_filter_is_not_claimed_and_costs_no_wall(whole: dict[str, Any], refused: str) -> None:
    report = doctor("--refuse", refused)

    assert lost(report, whole) <= {"landlock"}
    assert not report["layers"]["landlock"]["works"]
    assert report["level"] == "standard"
    assert "; no Landlock; " in report["verdict"]
    assert "seccomp filter around this process must allow landlock_create_ruleset" in knobs(report, "landlock").pop()


def test_a_masked_proc_is_named_with_what_masks_it(whole: dict[str, Any]) -> None:
    report = doctor("--cover", "/proc/kallsyms", "--cover", "/proc/keys")

    assert lost(report, whole) == {"pid_ns"}
    assert report["layers"]["pid_ns"]["reason"] == "MountProc /proc: mount: Operation not permitted"
    assert "(/proc/kallsyms, /proc/keys): docker run --security-opt systempaths" in knobs(report, "pid_ns").pop()


def test_a_container_that_refuses_namespaces_is_told_so(whole: dict[str, Any]) -> None:
    report = doctor(*LIKE_DOCKER, "--refuse-namespaces")

    assert report["level"] == "none"
    assert report["layers"]["user_ns"]["reason"] == "Clone: clone3: Function not implemented"
    assert "docker run --security-opt seccomp=unconfined" in knobs(report, "user_ns").pop()
    assert "a seccomp filter" in report["facts"]["around us"]


def test_a_container_that_refuses_mounts_loses_what_mounts(whole: dict[str, Any]) -> None:
    report = doctor("--refuse", "mount=EPERM")

    assert lost(report, whole) == {"pid_ns", "mount_ns", "root", "disk"}
    assert "docker run --security-opt seccomp=unconfined" in knobs(report, "root").pop()


def test_root_with_too_few_ids_has_no_user_to_give_away(whole: dict[str, Any]) -> None:
    report = doctor("--few-ids")

    assert lost(report, whole) == ({"own_uid"} if ROOT else set())
    if ROOT:
        assert report["level"] == "none"
        assert "its uid_map is 0 0 1" in knobs(report, "own_uid").pop()


@pytest.mark.parametrize("processes", some(["3", "1"], 1))
def test_too_few_processes_are_told_as_such(whole: dict[str, Any], processes: str) -> None:
    report = doctor("--processes", processes)

    bound = "own_uid" if ROOT else "user_ns"  # the superuser isn't, but who an agent of root's is outside
    assert report["level"] == "none"
    assert "Resource temporarily unavailable" in report["layers"][bound]["reason"]
    assert f"ulimit -u, now {processes}" in knobs(report, bound).pop()


def test_a_host_without_proc_is_told_to_mount_it(whole: dict[str, Any]) -> None:
    report = doctor("--hide", "/proc")

    assert report["level"] == "none"
    assert knobs(report, "user_ns") == {"mount proc at /proc"}


def test_what_is_no_layer_is_a_fact_and_costs_none(whole: dict[str, Any], tmp_path: Path) -> None:
    place = "/var/lib" if ROOT else str(tmp_path)
    facts = ("--refuse", "bind=EPERM", "--read-only", place)

    no_kernel = {"XDG_RUNTIME_DIR": str(tmp_path)}  # else the state directory is that of a kernel that runs meanwhile
    report = doctor("--no-new-privileges", *facts, XDG_STATE_HOME=place, **no_kernel)

    assert report["layers"] == whole["layers"]
    assert whole["facts"]["filtered network"] == "works"
    assert report["facts"]["filtered network"].startswith("no: Listen 80 80 53: tcp 127.0.0.1:80: Operation not per")
    assert "not writable: Read-only file system: use agentos run --state-dir" in report["facts"]["state directory"]


SPAWN = """
import trio
from agentos.sandbox.report import levels, probe
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Policy, Program
from agentos.sandbox.start.spawner import Spawner

async def main(spawner):
    here = probe.read_host()
    found = await probe.probe_layers(spawner, here)
    print("nothing missing" if not levels.missing_layers("standard", found) else "no standard")
    for host in (here, probe.remove_broken_layers(here, found)):
        try:
            steps = plan_sandbox(Policy(), Program(["/bin/true"]), host, probe.TRIAL_IDS if here.uid == 0 else None)
            sandbox = await spawner.spawn(steps)
            print(await sandbox.wait())
        except StepFailed as failure:
            print(failure.step)

trio.run(main, Spawner.start())
"""


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--sysctl", "user.max_uts_namespaces=0"),
        ("--cover", "/proc/kallsyms"),
        ("--refuse", "mount=EPERM"),
        ("--refuse", "umount2=EPERM"),
        ("--refuse", "pivot_root=EPERM"),
        ("--refuse", "open_tree=ENOSYS"),
        ("--refuse", "mount_setattr=ENOSYS"),
        ("--refuse", "sethostname=EPERM"),
        ("--refuse", "capset=EPERM"),
        ("--processes", "3"),
    ],
    ids=lambda options: " ".join(options) or "whole",
)
def test_standard_is_promised_just_where_a_whole_sandbox_can_be_made(options: tuple[str, ...]) -> None:
    spawned = run_crippled(options, ["-c", SPAWN], HERE, os.environ)

    promised, _, last = spawned.stdout.decode().splitlines()
    assert promised in ("nothing missing", "no standard")
    assert (promised == "nothing missing") == (last == "exit status 0"), spawned


def test_a_plan_leaves_out_the_landlock_that_a_host_has_in_name_only(whole: dict[str, Any]) -> None:
    if not whole["layers"]["landlock"]["works"]:
        pytest.skip(f"no Landlock here that could be taken away: {whole['layers']['landlock']['reason']}")

    spawned = run_crippled(["--refuse", "landlock_restrict_self=EPERM"], ["-c", SPAWN], HERE, os.environ)

    assert spawned.stdout.splitlines() == [b"nothing missing", b"Landlock", b"exit status 0"]


# In the guest kernel, which has control groups of version 2. User-mode Linux has no Landlock, Debian's kernel has.

# An interpreter that has imported all this costs a guest two seconds, so one process tries all that root can see.
IN_SCOPE = """
import contextlib, io, json, os, select, signal, subprocess, sys, time
from agentos.sandbox.cgroups.discover import discover_here, open_root
from agentos.sandbox.cgroups.values import Limits
from agentos.sandbox.report.doctor import describe_shortfall
from agentos.userland.cli.main import cli
scope, told = os.environ["CGROUP2_SCOPE"], {}
def state():
    files = [open(path).read() for path in ("/proc/self/cgroup", f"{scope}/cgroup.subtree_control")]
    return files, sorted(os.walk(scope)), sorted(os.listdir("/proc/self/fd"))
def doctor():
    text, before = io.StringIO(), state()
    try:
        with contextlib.redirect_stdout(text):
            cli(["doctor"])
    except SystemExit as end:
        deadline = time.monotonic() + 60  # a thread closes the descriptors of jails
        while state() != before and time.monotonic() < deadline:
            time.sleep(0.05)
        return {"lines": text.getvalue().splitlines(), "code": end.code, "restored": state() == before}
told["alone"] = doctor()
if "all" in sys.argv:
    orphan = subprocess.run(["sh", "-c", "sleep 1000 >/dev/null & echo $!"], stdout=subprocess.PIPE).stdout
    told["shared"] = doctor()
    told["shared"]["group"] = open("/proc/self/cgroup").read()
    with open(os.pidfd_open(int(orphan)), "rb") as other:
        signal.pidfd_send_signal(other.fileno(), signal.SIGKILL)
        select.select([other], [], [])
    group = open_root(discover_here()).root.create_child("unlimited", Limits())
    told["unlimited"] = describe_shortfall(group, "pids")
print(json.dumps(told))
"""


def in_guest(guest: RunInGuest, *argv: str, **job: Any) -> list[str]:
    ended = guest(*argv, cwd="/", **job)  # to the guest's root this directory may be another user's
    assert ended.code in (0, 1), ended.out + ended.err
    return ended.out.splitlines()


def row(lines: list[str], layer: str) -> str:
    return next(" ".join(line.split()) for line in lines if line.startswith(f"{layer} "))


@pytest.fixture(scope="module")
def told_to_root(guest: RunInGuest) -> dict[str, Any]:
    """What doctor says in a scope of root's, and in one that another process is in; and of a group without limits."""
    told: dict[str, Any] = json.loads(in_guest(guest, sys.executable, "-c", IN_SCOPE, "all")[-1])
    return told


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
def test_in_a_delegated_scope_all_limits_hold_and_the_scope_is_left_as_it_was(
    guest: RunInGuest, told_to_root: dict[str, Any], user: bool
) -> None:
    told = told_to_root
    if user:
        told = json.loads(in_guest(guest, sys.executable, "-c", IN_SCOPE, user=True)[-1])
    lines = told["alone"]["lines"]

    who = "agents run as uid 1000" if user else "a uid for each agent"
    assert lines[0] == f"standard: all walls; limits by cgroup v2; no Landlock; {who}"
    assert row(lines, "landlock") == "landlock no Landlock: landlock_create_ruleset: Function not implemented"
    assert "For landlock: a kernel with it: Linux 5.13 or later, built with CONFIG_SECURITY_LANDLOCK" in lines
    assert [row(lines, name) for name in ("memory", "pids", "cpu")] == [
        "memory yes cgroup v2",
        "pids yes cgroup v2",
        "cpu yes cgroup v2",
    ]
    assert (told["alone"]["code"], told["alone"]["restored"]) == (0, True)


def test_a_limit_that_does_not_hold_is_noticed(told_to_root: dict[str, Any]) -> None:
    assert told_to_root["unlimited"] == "a program forked although its cgroup was at its limit"


def test_a_scope_shared_with_another_process_is_left_alone_and_the_way_out_is_said(
    told_to_root: dict[str, Any],
) -> None:
    shared = told_to_root["shared"]
    lines = shared["lines"]

    assert lines[0].startswith("standard: all walls; limits by rlimits, cpu not limited;")
    assert "is shared with other processes" in row(lines, "cpu")
    assert "systemd-run --scope -p Delegate=yes agentos run" in " ".join(" ".join(lines).split())
    assert (shared["group"], shared["restored"]) == ("0::/guest.slice/command.scope\n", True)


@pytest.fixture
def lives_in_our_prefix(tmp_path: Path) -> str:
    """A list of users, one of whom has his home where the interpreter that runs this is."""
    users = tmp_path / "passwd"
    users.write_text(f"{Path('/etc/passwd').read_text()}alice:x:4000:4000::{sys.prefix}:/bin/sh\n")
    return str(users)


def test_an_interpreter_that_lies_in_a_home_is_a_root_that_would_show_it(
    whole: dict[str, Any], lives_in_our_prefix: str
) -> None:
    report = doctor("--replace", f"/etc/passwd={lives_in_our_prefix}")

    assert lost(report, whole) == {"root", "disk"}
    why = f"for {sys.executable} a jail would show {sys.prefix}, which contains a user's home directory"
    assert report["layers"]["root"]["reason"] == why
    assert knobs(report, "root").pop().startswith("install AgentOS into an environment in a directory of its own")
    assert report["verdict"].startswith("none: root not available")


@pytest.mark.usefixtures("kernels")
def test_no_kernel_starts_with_an_interpreter_that_lies_in_a_home(tmp_path: Path, lives_in_our_prefix: str) -> None:
    kernel = ["run", "--socket", f"{tmp_path}/socket", "--state-dir", str(tmp_path)]

    done = run_crippled(["--replace", f"/etc/passwd={lives_in_our_prefix}"], kernel, HERE, os.environ)

    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(
        f"agentos: for {sys.executable} a jail would show {sys.prefix}, which contains a user"
    )
    assert b"python3 -m venv" in done.stderr
