"""Each step made to fail in turn: the error names it, and nothing is left, least of all a program that runs."""

import errno
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from attrs import frozen

from agentos.sandbox import steps as s
from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.filters import bpf, profile
from agentos.sandbox.filters.profile import ALLOW, OneOf, Profile, Refusal, Rule, compile_filter
from agentos.sandbox.policy import Directory, RootImage
from agentos.sandbox.start import handshake
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.sandbox.jail import Belongings, a_plan

NO = profile.errno_verdict(errno.EPERM)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_DUMPABLE = 38, 22, 4


@frozen
class Broken:
    """The calls that are refused from just before the step on."""

    kind: type
    calls: dict[str, Rule]


def no_prctl(option: int) -> dict[str, Rule]:
    return {"prctl": (Refusal(errno.EPERM, (OneOf(0, (option,)),)),)}


BROKEN = [
    Broken(s.UnshareCgroup, {"unshare": NO}),
    Broken(s.PrivateMounts, {"mount": NO}),
    Broken(s.OpenSource, {"openat": NO}),
    Broken(s.ForbidExecutableMemfds, {"openat": NO}),
    Broken(s.TakeIdentity, {"setresuid": NO}),
    Broken(s.ForbidNamespaces, {"openat": NO}),
    Broken(s.Hostname, {"sethostname": NO}),
    Broken(s.MountRoot, {"mount": NO, "move_mount": NO}),
    Broken(s.MakeDirectory, {"mkdir": NO, "mkdirat": NO}),
    Broken(s.WriteFile, {"openat": NO}),
    Broken(s.Link, {"symlink": NO, "symlinkat": NO}),
    Broken(s.Bind, {"move_mount": NO}),
    Broken(s.Bind, {"open_tree": NO}),
    Broken(s.Bind, {"mount_setattr": NO}),
    Broken(s.Protect, {"open_tree": NO}),
    Broken(s.Protect, {"openat2": NO}),
    Broken(s.Protect, {"move_mount": NO}),
    Broken(s.MountTmpfs, {"mount": NO}),
    Broken(s.MountTerminals, {"mount": NO}),
    Broken(s.MountImage, {"open_tree": NO}),
    Broken(s.MountImage, {"mount": NO}),
    Broken(s.MountImage, {"fsconfig": NO}),
    Broken(s.MountImage, {"move_mount": NO}),
    Broken(s.MountProc, {"mount": NO}),
    Broken(s.CloseSources, {"close": NO}),
    Broken(s.SwitchRoot, {"pivot_root": NO}),
    Broken(s.SwitchRoot, {"umount2": NO}),
    Broken(s.ReadOnlyRoot, {"mount_setattr": NO}),
    Broken(s.LoopbackUp, {"socket": NO}),
    Broken(s.LoopbackUp, {"ioctl": NO}),
    Broken(s.RouteToLoopback, {"socket": NO}),
    Broken(s.SetLimits, {"prlimit64": NO, "setrlimit": NO}),
    Broken(s.DropCapabilities, {"capset": NO}),
    Broken(s.NoNewPrivileges, no_prctl(PR_SET_NO_NEW_PRIVS)),
    Broken(s.Landlock, {"landlock_restrict_self": NO}),
    Broken(s.Landlock, {"landlock_add_rule": NO}),
    Broken(s.Seccomp, no_prctl(PR_SET_SECCOMP)),
    Broken(s.Execute, {"execve": NO}),
    Broken(s.Execute, {"setsid": NO}),
    Broken(s.Execute, {"dup2": NO, "dup3": NO}),
]

AFTER_THE_LAST_STEP: list[dict[str, Rule]] = [no_prctl(PR_SET_DUMPABLE), {"close_range": NO}]  # of PID 1
OF_PID_1 = [Broken(s.Seccomp, calls) for calls in AFTER_THE_LAST_STEP]  # which names the last step that it did

NOT_WITH_ROOT = [Broken(s.Bind, {"open_tree": NO}), Broken(s.CloseSources, {"close": NO})]


def broken(steps: Sequence[Step], broken: Broken) -> list[Step]:
    """The plan with a filter in front of the step that can't do without these calls."""
    kinds = [type(step) for step in steps]
    place = min(kinds.index(broken.kind), kinds.index(s.DropCapabilities))  # a filter takes a capability by then
    program = compile_filter(Profile("test", broken.calls, ALLOW), os.uname().machine)
    return [*steps[:place], s.Seccomp(bpf.pack(program).hex()), *steps[place:]]


def test_every_kind_of_step_is_made_to_fail() -> None:
    by_the_zygote = {s.Clone, s.DetachRoot, s.DetachSource, s.DetachImage, s.DetachLayer}
    to_enter = {s.Join, s.Descend, s.Listen}  # see test_enter.py, test_listen.py; test_fast.py, test_overlay.py

    elsewhere = by_the_zygote | to_enter | {s.StandBy, s.RunScript, s.MountOverlay}
    assert {one.kind for one in BROKEN} == set(s.KINDS) - elsewhere


@pytest.fixture
def place() -> Iterator[str]:
    """A workspace."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o777)
        os.mkdir(f"{place}/kept")
        yield place


@pytest.fixture
def steps(how: Broken, place: str) -> Sequence[Step]:
    """A plan with that step. Skips where there is none: pytest-trio loses the reason if an async test skips."""
    profile = "strict" if how.kind is s.ForbidExecutableMemfds else "standard"
    network = "filtered" if how.kind is s.RouteToLoopback else "none"
    workspace = Directory(place, ("kept",))
    image = RootImage(f"{place}/kept") if how.kind is s.MountImage else None
    given: dict[str, Any] = {"workspace": workspace, "profile": profile, "network": network, "image": image}
    steps = a_plan("/bin/sh", "-c", "touch ran", **given, terminals=how.kind is s.MountTerminals)
    if os.geteuid() == 0 and how in NOT_WITH_ROOT:
        pytest.skip("with root the zygote has done that")
    if how.kind not in map(type, steps):
        pytest.skip(f"this host's plan has no {how.kind.__name__}")
    return steps


@pytest.mark.parametrize("how", [*BROKEN, *OF_PID_1], ids=lambda one: f"{one.kind.__name__}-{'-'.join(one.calls)}")
async def test_a_step_that_fails_is_named_and_leaves_nothing(
    spawner: Spawner, how: Broken, place: str, steps: Sequence[Step]
) -> None:
    before = Belongings.now()

    with pytest.raises(StepFailed) as failure:
        await spawner.spawn(broken(steps, how))

    assert failure.value.step.split()[0] == how.kind.__name__
    assert failure.value.errno == errno.EPERM
    assert "Operation not permitted" in str(failure.value)
    assert Belongings.now() == before
    assert os.listdir(place) == ["kept"]


@pytest.mark.parametrize("map_", ["1000 0 4294967295", "rubbish"])
async def test_maps_that_the_kernel_refuses_are_an_error(spawner: Spawner, map_: str) -> None:
    clone, *steps = a_plan("/bin/true")
    assert isinstance(clone, s.Clone)
    before = Belongings.now()

    with pytest.raises(StepFailed, match=r"Clone: /proc/.*/uid_map"):
        await spawner.spawn([clone._replace(uid_map=map_ if os.geteuid() else "rubbish"), *steps])

    assert Belongings.now() == before


async def test_flags_that_the_kernel_refuses_are_an_error(spawner: Spawner) -> None:
    clone, *steps = a_plan("/bin/true")
    assert isinstance(clone, s.Clone)
    before = Belongings.now()

    with pytest.raises(StepFailed, match="Clone: clone3: Invalid argument"):
        await spawner.spawn([clone._replace(flags=clone.flags | 0x200), *steps])  # CLONE_FS besides CLONE_NEWNS

    assert Belongings.now() == before


async def test_a_source_that_doesnt_exist_is_an_error(spawner: Spawner) -> None:
    with pytest.raises(StepFailed, match=r"(Open|Detach)Source /no/such: /no/such: No such file or directory"):
        await spawner.spawn(a_plan("/bin/true", script="/no/such"))


@pytest.mark.parametrize(
    "name",
    ["a" * 5000, "é" * 1500, "\1" * 2000, "\U0001f4a5" * 900, "\udc80" * 3000],
    ids=lambda name: f"{name[0]!a}-{len(name)}",
)
async def test_a_name_however_long_is_an_error_like_others(spawner: Spawner, name: str) -> None:
    before = Belongings.now()

    with pytest.raises(StepFailed, match=r"Execute /usr/.*: File name too long") as program:
        await spawner.spawn(a_plan(f"/usr/{name}"))
    with pytest.raises(StepFailed, match=r"/tmp/.*: File name too long") as directory:
        await spawner.spawn(a_plan("/bin/true", cwd=f"/tmp/{name}"))
    with pytest.raises(StepFailed, match=r"(Open|Detach)Source /tmp/.*: File name too long") as source:
        await spawner.spawn(a_plan("/bin/true", code=f"/tmp/{name}"))

    assert {failure.value.errno for failure in (program, directory, source)} == {errno.ENAMETOOLONG}
    assert Belongings.now() == before


async def test_a_message_that_cant_be_read_is_an_error() -> None:
    control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, its:
        control.setblocking(False)
        its.send(b'{"what": "failed", "step": "Exec')

        with pytest.raises(SandboxError, match=r"unexpected message from a new process: .*failed"):
            await handshake.wait_confined(control)


async def test_a_process_that_is_killed_on_the_way_is_an_error(spawner: Spawner) -> None:
    before = Belongings.now()
    kill = bpf.pack(compile_filter(Profile("kill", {"pivot_root": profile.KILL_PROCESS}, ALLOW), os.uname().machine))
    steps = a_plan("/bin/true")
    place = [type(step) for step in steps].index(s.SwitchRoot)

    with pytest.raises(Exception, match="ended before it was confined"):
        await spawner.spawn([*steps[:place], s.Seccomp(kill.hex()), *steps[place:]])

    assert Belongings.now() == before
