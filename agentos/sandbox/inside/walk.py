"""Does the steps of a plan, one by one, to the process that it is called in; any that fails ends it."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

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
            if isinstance(step, s.SetLimits | s.Execute | s.RunScript):
                walker.hand_over()
            if isinstance(step, s.Execute | s.RunScript):
                if step.alone:
                    program.alone(step, control, streams.stdout, streams.stderr)
                shim.execute(step, control, streams.status, streams.stdout, streams.stderr)
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
        kind = type(step)
        if kind in _BUILD:
            _BUILD[kind](self.root, step)
        elif kind in _CONFINE:
            _CONFINE[kind](step)
        else:
            self._move(step)

    def hand_over(self) -> None:
        """Give the kernel what was found.

        Before there are limits: Linux refuses whoever passes a descriptor on while more of the same user's are under
        way than the sender may have open, and without root that user has every other agent as well.
        """
        found = {**self.found, **self.root.counted}
        if found:
            messages.say(self.control, messages.FOUND, found)
        for fd in found.values():
            os.close(fd)
        self.found, self.root.counted = {}, {}

    def _move(self, step: s.Step) -> None:
        """From one namespace to another."""
        match step:
            case s.Clone():
                pass  # that's how we came to be
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
            case _:
                raise AssertionError(f"nobody knows how to do {step}")


# By kind: comparing each step with one kind after the other would touch, and thereby copy, the memory of them all.
_BUILD: Mapping[type, Callable[[Root, Any], None]] = {
    s.PrivateMounts: Root.make_private,
    s.OpenSource: Root.open_source,
    s.MountRoot: Root.mount,
    s.MakeDirectory: Root.make_directory,
    s.WriteFile: Root.write_file,
    s.Link: Root.link,
    s.Bind: Root.bind,
    s.Protect: Root.protect,
    s.MountTmpfs: Root.mount_tmpfs,
    s.MountProc: Root.mount_proc,
    s.CloseSources: Root.close_sources,
    s.SwitchRoot: Root.switch,
    s.ReadOnlyRoot: Root.make_read_only,
}
_CONFINE: Mapping[type, Callable[[Any], None]] = {
    s.TakeIdentity: identity.take,
    s.ForbidNamespaces: identity.forbid_namespaces,
    s.Hostname: identity.set_hostname,
    s.LoopbackUp: identity.loopback_up,
    s.SetLimits: identity.set_limits,
    s.DropCapabilities: identity.drop_capabilities,
    s.NoNewPrivileges: filters.no_new_privileges,
    s.Landlock: filters.landlock,
    s.Seccomp: filters.seccomp,
}
