"""Execute the steps of a plan, one by one, in the calling process; a failed step ends the process."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from agentos.sandbox import steps as s

from . import enter, filters, identity, keeper, libc, messages, network, program, script, shim
from .low_priority import LowPriority
from .mounts import Root

_NEWNS, _NEWCGROUP = 0x20000, 0x2000000
NAME = "agentos-init"  # as shown by ps, for PID 1 and processes on the way to it
_CLONE_STEP = "Clone"  # reported if it fails before the first step


def run_plan(channel: int) -> NoReturn:
    """Set up the new process from its clone to its program. Never returns, and never continues after a failure.

    If the program is a script, :class:`script.Ready` is raised for it.
    """
    current: s.Step | None = None
    control = socket.socket(fileno=channel)
    try:
        libc.keep_only(channel)
        os.setsid()
        messages.send(control, messages.BORN)
        runner, waiting = _StepRunner(control, {}), None
        while True:  # until the part of the plan that ends with Execute
            fds = runner.fds
            fds.update(messages.receive_fds(control))
            if waiting is not None:
                waiting.end()
            _enter_cgroups(fds)
            steps = _read_plan(fds.pop("plan"))
            waiting = LowPriority() if isinstance(steps[-1], s.StandBy) else None
            streams = {name: fds.pop(name) for name in ("status", "stdout", "stderr") if name in fds}
            if streams:
                libc.set_name(NAME)
            for step in steps:
                current = step
                if isinstance(step, s.SetLimits | s.Execute | s.RunScript):
                    runner.send_descriptors()
                if isinstance(step, s.Execute | s.RunScript):
                    if step.no_shim:
                        program.exec_without_shim(step, control, streams["stdout"], streams["stderr"])
                    if isinstance(step, s.Execute) and step.keeper:
                        keeper.execute(step, control, **streams)
                    if isinstance(step, s.Execute) and isinstance(steps[0], s.Join) and step.terminal is None:
                        shim.spawn(step, control, **streams)
                    shim.execute(step, control, **streams)
                runner.execute(step)
    except script.Ready:
        raise
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.send_failure(control, s.describe(current) if current is not None else _CLONE_STEP, error)
    os._exit(messages.EX_SETUP)


def _enter_cgroups(fds: dict[str, int]) -> None:
    """Move into the given cgroups of version 1.

    A single-threaded process that moves itself doesn't have to wait until no process in the whole system is about to
    fork, which takes milliseconds.
    """
    for name in [name for name in fds if name.startswith(messages.CGROUP_PREFIX)]:
        group = fds.pop(name)
        try:
            os.write(group, b"0")
        except OSError as error:
            raise OSError(error.errno, error.strerror, "a control group") from None
        os.close(group)


def _read_plan(plan: int) -> tuple[s.Step, ...]:
    with open(plan, "rb", buffering=0) as file:
        return s.decode(file.readall())


class _StepRunner:
    def __init__(self, control: socket.socket, fds: dict[str, int]) -> None:
        """``fds`` are sources by target, or namespaces to join by name."""
        self.control, self.fds = control, fds
        self.root = Root(fds)
        self.descriptors: dict[str, int] = {}  # namespaces that the kernel can't open itself, as descriptors

    def execute(self, step: s.Step) -> None:
        kind = type(step)
        if kind in _ROOT_STEPS:
            _ROOT_STEPS[kind](self.root, step)
        elif kind in _CONFINE_STEPS:
            _CONFINE_STEPS[kind](step)
        else:
            self._change_namespace(step)

    def send_descriptors(self) -> None:
        """Send the kernel the descriptors that were opened for it.

        Done before the limits apply: Linux refuses a descriptor if the same uid has more of them in transit than the
        sender may have open, and without root all agents share that uid.
        """
        found = {**self.descriptors, **self.root.counted}
        if found:
            messages.send(self.control, messages.FOUND, found)
        for fd in found.values():
            os.close(fd)
        self.descriptors, self.root.counted = {}, {}

    def _change_namespace(self, step: s.Step) -> None:
        """Execute a step that changes namespaces."""
        match step:
            case s.Clone() | s.StandBy():
                pass  # done by the zygote; done ahead, or not needed
            case s.Join():
                enter.join(self.fds)
                self.fds.clear()
            case s.Descend():
                enter.descend(step, self.control)
            case s.Listen():
                network.listen(step, self.control)
            case s.PrivateMounts():
                libc.unshare(_NEWNS)
                self.descriptors["mnt"] = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                self.root.make_private()
            case s.UnshareCgroup():
                libc.unshare(_NEWCGROUP)
                self.descriptors["cgroup"] = os.open("/proc/self/ns/cgroup", os.O_RDONLY | os.O_CLOEXEC)
            case _:
                raise AssertionError(f"no handler for the step {step}")


# By kind: comparing each step with one kind after the other would touch, and so copy, the memory of all kinds.
_ROOT_STEPS: Mapping[type, Callable[[Root, Any], None]] = {
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
_CONFINE_STEPS: Mapping[type, Callable[[Any], None]] = {
    s.ForbidExecutableMemfds: identity.forbid_executable_memfds,
    s.TakeIdentity: identity.take,
    s.ForbidNamespaces: identity.forbid_namespaces,
    s.Hostname: identity.set_hostname,
    s.LoopbackUp: network.loopback_up,
    s.RouteToLoopback: network.route_to_loopback,
    s.SetLimits: identity.set_limits,
    s.DropCapabilities: identity.drop_capabilities,
    s.NoNewPrivileges: filters.no_new_privileges,
    s.Landlock: filters.landlock,
    s.Seccomp: filters.seccomp,
}
