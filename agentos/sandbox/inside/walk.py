"""Does the steps of a plan, one by one, to the process that it is called in; any that fails ends it."""

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from agentos.sandbox import steps as s

from . import filters, identity, libc, messages, shim
from .mounts import Root

_NEWCGROUP = 0x2000000


class Streams(NamedTuple):
    """The descriptors that a new process was given."""

    control: int
    status: int  # a pipe for the shim's last word
    stdout: int
    stderr: int


def become(steps: Sequence[s.Step], streams: Streams) -> NoReturn:
    """From the moment of birth to the program. Never returns, and never goes on after a failure."""
    doing = "Clone"
    control = socket.socket(fileno=streams.control)
    try:
        _keep_only(streams)
        os.setsid()
        messages.say(control, messages.BORN)
        messages.await_go(control)
        walker = _Walker()
        for step in steps:
            doing = s.describe(step)
            if isinstance(step, s.Execute):
                shim.execute(step, control, streams.status, streams.stdout, streams.stderr, walker.found)
            walker.do(step)
        raise AssertionError("a plan ends with Execute")
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.say_failed(control, doing, error)
    os._exit(messages.EX_SETUP)


def _keep_only(streams: Streams) -> None:
    """Close what the zygote had open besides: its own socket."""
    former = 2
    for fd in sorted(streams):
        libc.close_range(former + 1, fd - 1)
        former = fd
    libc.close_range(former + 1)


class _Walker:
    def __init__(self) -> None:
        self.root = Root()
        self.found: dict[str, int] = {}  # namespaces made on the way, by inode

    def do(self, step: s.Step) -> None:
        match step:
            case s.Clone():
                pass  # that's how we came to be
            case s.UnshareCgroup():
                libc.unshare(_NEWCGROUP)
                self.found["cgroup"] = os.stat("/proc/self/ns/cgroup").st_ino
            case s.TakeIdentity():
                identity.take(step)
            case s.ForbidNamespaces():
                identity.forbid_namespaces()
            case s.Hostname():
                libc.set_hostname(step.name)
            case s.LoopbackUp():
                identity.loopback_up()
            case s.SetLimits():
                identity.set_limits(step)
            case s.DropCapabilities():
                identity.drop_capabilities()
            case s.NoNewPrivileges():
                filters.no_new_privileges()
            case s.Landlock():
                filters.landlock(step)
            case s.Seccomp():
                filters.seccomp(step)
            case _:
                self._build(step)

    def _build(self, step: s.Step) -> None:
        root = self.root
        match step:
            case s.PrivateMounts():
                root.make_private()
            case s.OpenSource():
                root.open_source(step.path)
            case s.MountRoot():
                root.mount(step)
            case s.MakeDirectory():
                root.make_directory(step)
            case s.WriteFile():
                root.write_file(step)
            case s.Link():
                root.link(step)
            case s.Bind():
                root.bind(step)
            case s.MountTmpfs():
                root.mount_tmpfs(step)
            case s.MountProc():
                root.mount_proc(step)
            case s.CloseSources():
                root.close_sources()
            case s.SwitchRoot():
                root.switch()
            case s.ReadOnlyRoot():
                root.make_read_only()
            case _:
                raise AssertionError(f"nobody knows how to do {step}")
