"""Does the steps of a plan, one by one, to the process that it is called in; any that fails ends it."""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from agentos.sandbox import steps as s

from . import enter, filters, identity, libc, messages, program, script, shim
from .mounts import Root
from .sources import Trees

_NEWCGROUP = 0x2000000


class Streams(NamedTuple):
    """The descriptors that a new process was given."""

    control: int
    status: int  # a pipe for the shim's last word
    stdout: int
    stderr: int


def become(steps: Sequence[s.Step], streams: Streams, trees: Trees, namespaces: Mapping[str, int]) -> NoReturn:
    """From the moment of birth to the program. Never returns, and never goes on after a failure.

    Where the program is a script, :class:`script.Ready` is raised for it.

    ``namespaces`` are those to join, where the first step is to.
    """
    doing = steps[0]
    control = socket.socket(fileno=streams.control)
    try:
        libc.keep_only(*streams, *trees.values(), *namespaces.values())
        os.setsid()
        messages.say(control, messages.BORN)
        messages.await_go(control)
        walker = _Walker(control, trees, namespaces)
        for step in steps:
            doing = step
            if isinstance(step, s.Execute | s.RunScript):
                if step.alone:
                    program.alone(step, control, streams.stdout, streams.stderr, walker.found)
                shim.execute(step, control, streams.status, streams.stdout, streams.stderr, walker.found)
            walker.do(step)
        raise AssertionError("a plan ends with Execute")
    except script.Ready:
        trees.clear()  # these numbers aren't theirs any more
        raise
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.say_failed(control, s.describe(doing), error)
    os._exit(messages.EX_SETUP)


class _Walker:
    def __init__(self, control: socket.socket, trees: Trees, to_join: Mapping[str, int]) -> None:
        self.control, self.to_join = control, to_join
        self.root = Root(trees)
        self.found: dict[str, int] = {}  # namespaces that the kernel can't open itself, as descriptors

    def do(self, step: s.Step) -> None:
        match step:
            case s.Clone() | s.DetachSource() | s.DetachImage():
                pass  # that's how we came to be, and what we came with
            case s.Join():
                enter.join(self.to_join)
            case s.Descend():
                enter.descend(step, self.control)
            case s.OwnProc():
                self.found = enter.show_own(step)
            case s.Listen():
                enter.listen(step, self.control)
            case s.UnshareCgroup():
                libc.unshare(_NEWCGROUP)
                self.found["cgroup"] = os.open("/proc/self/ns/cgroup", os.O_RDONLY | os.O_CLOEXEC)
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
                root.open_source(step)
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
            case s.Protect():
                root.protect(step)
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
