"""Jailed agents as the host sees them: what they say of themselves is one thing, /proc and cgroup files the other."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, running, stat_of, until
from tests.system.agents import lines, up, write

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    *("user_ns", "pid_ns", "mount_ns", "net_ns", "ipc_ns", "uts_ns", "cgroup_ns", "root", "own_uid", "capabilities"),
    *("no_new_privs", "seccomp", "landlock", "rlimits", "memory", "pids", "cpu", "disk"),
)
WAITS = "\nimport time\nwhile True: time.sleep(1000)\n"
GROUPED = re.compile(r"\| isolation standard: .*limits by cgroup v(\d)")
Cripple = Callable[..., Kernel]


def said(client: AgentOSClient, kernel: Kernel, name: str, code: str, **more: Any) -> Any:
    """Start an agent whose script ends with ``print(json.dumps(...))``; what it printed. It goes on living."""
    up(client.spawn(name, write(kernel, f"{name}.py", code + WAITS), **more))
    until(lambda: lines(client, name, "stdout"), f"{name} says something: {lines(client, name)}")
    return json.loads(lines(client, name, "stdout")[0])


def layers(reply: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The record of a SPAWN that went well."""
    assert reply["success"], reply
    found: dict[str, dict[str, Any]] = reply["isolation"]["layers"]
    return found


def cgroups(kernel: Kernel) -> int | None:
    """By which version of control groups this kernel limits its agents; None: by none."""
    found = GROUPED.search(kernel.wait_line(r"\| isolation "))
    return int(found[1]) if found else None


def need_cgroups(kernel: Kernel) -> int:
    version = cgroups(kernel)
    if version is None:
        pytest.skip("no control group is delegated to us here")
    return version


def group_of(pid: int, controller: str) -> Path:
    """The directory of the control group that limits a process by that controller."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return Path(_mounted(controller) + path)
    path = next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    return Path("/sys/fs/cgroup" + path).parent  # above the leaf that holds the process


def _mounted(controller: str) -> str:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options = line.split(" ")[:4]
        if kind == "cgroup" and controller in options.split(","):
            return point
    raise AssertionError(f"no {controller} hierarchy is mounted")


def groups_left(pid: int, birth: int | None = None) -> list[str]:
    """The control groups that a kernel has made, wherever they are. ``birth`` is its own, once it has ended.

    An earlier kernel with the same pid may have been killed together with what would have removed its groups.
    """
    if birth is None:
        birth = birth_of(pid)
    return [
        os.path.join(directory, name)
        for directory, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if re.fullmatch(rf"agentos-[0-9a-f]+-\d+-{pid}-{birth}", name)
    ]


def birth_of(pid: int) -> int:
    status = stat_of(pid)
    assert status is not None, f"{pid} is gone"
    return status[2]


def loops_in(place: Path) -> list[str]:
    """The loop devices whose files lie in that directory."""
    found = []
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(device.read_text().strip())
    return [path for path in found if path.startswith(f"{place}/")]


def status_of(pid: int) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, value in pairs}


def zygotes_of(kernel: int) -> list[int]:
    """The processes that clone for a kernel with this pid, whoever is their parent now."""
    found = []
    for pid in copies_of_zygotes(kernel):
        with contextlib.suppress(OSError, ValueError):  # one that has ended meanwhile has no command
            *_, channel, _, _ = Path("/proc", str(pid), "cmdline").read_bytes().decode().split("\0")
            if os.path.lexists(f"/proc/{pid}/fd/{channel}"):  # what it has cloned has closed it
                found.append(pid)
    return found


def copies_of_zygotes(kernel: int) -> list[int]:
    """The zygotes of a kernel, and what they have cloned that waits for a plan."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            its = any(b"agentos.sandbox.inside.zygote" in word for word in words) and words[-2] == b"%d" % kernel
            if its and len(status_of(int(name))["NSpid"].split()) == 1:  # the others are PID 1 of a jail
                found.append(int(name))
    return found


def mounts_of(pid: int) -> dict[str, list[str]]:
    """File system and options by mount point, as a process sees them."""
    found = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        found[before.split(" ")[4]] = [kind, *before.split(" ")[5].split(","), *options.split(",")]
    return found


def crippled(*options: str, toml: str | None = None) -> contextlib.AbstractContextManager[Kernel]:
    """A kernel on a host from which something was taken away (``tests.tools.crippled``)."""
    return running(toml, crippled=options)
