"""Execute the steps of a plan, one by one, in the calling process; a failed step ends the process."""

import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from agentos.sandbox import steps as s
from agentos.sandbox.encoded_steps import decode, encode

from . import enter, filters, identity, keeper, libc, memory, messages, network
from .low_priority import LowPriority
from .mounts import Root
from .programs import program, script, shim

COPY_DELAY = 0.02  # seconds that a process waits before it copies memory ahead: if many are started, there is no time
NEWPID, _NEWCGROUP = 0x20000000, 0x2000000
_CLONE_STEP = "Clone"  # reported if it fails before the first step


def run_plan(channel: int, has_init: bool) -> NoReturn:
    """Set up the new process from its clone to its program. Never returns, and never continues after a failure.

    With ``has_init`` it is the first one of a PID namespace: it stays as PID 1, and a child of it becomes the program.
    If the program is a script, :class:`script.Ready` is raised for it.
    """
    current: s.Step | None = None
    control = socket.socket(fileno=channel)
    try:
        libc.keep_only(channel)
        os.setsid()
        messages.send(control, messages.BORN)
        runner, waiting = _StepRunner(control, {}, shim.leave(control) if has_init else None), None
        while True:  # until the part of the plan that ends with Execute
            if waiting is not None and not select.select([control], [], [], COPY_DELAY)[0]:
                memory.copy_ranges()
            fds = runner.fds
            fds.update(messages.receive_fds(control))
            if waiting is not None:
                waiting.end()
            runner.enter_cgroups([fds.pop(name) for name in tuple(fds) if name.startswith(messages.CGROUP_PREFIX)])
            steps = _read_plan(fds.pop("plan"))
            waiting = LowPriority() if isinstance(steps[-1], s.StandBy) else None
            streams: dict[str, int] = {name: fds.pop(name) for name in ("status", "stdout", "stderr") if name in fds}
            if streams:
                libc.set_title(shim.NAME, shim.NAME)
                runner.confine_init(steps, streams["status"])
            for step in steps:
                current = step
                if isinstance(step, s.SetLimits | s.Execute | s.RunScript):
                    runner.send_descriptors()
                if isinstance(step, s.Execute | s.RunScript):
                    runner.start_program(step, streams, joined=isinstance(steps[0], s.Join))
                runner.execute(step)
    except script.Ready:
        raise
    except messages.KernelGone:
        pass
    except BaseException as error:
        messages.send_failure(control, s.describe(current) if current is not None else _CLONE_STEP, error)
    os._exit(messages.EX_SETUP)


def _read_plan(plan: int) -> tuple[s.Step, ...]:
    with open(plan, "rb", buffering=0) as file:
        return decode(file.readall())


class _StepRunner:
    def __init__(self, control: socket.socket, fds: dict[str, int], init: socket.socket | None) -> None:
        """``fds`` are sources by target, or namespaces to join by name. ``init`` leads to PID 1, if it forked us."""
        self.control, self.fds = control, fds
        self.root = Root(fds)
        self.descriptors: dict[str, int] = {}  # namespaces that the kernel can't open itself, as descriptors
        self.init = init
        self.confine = _CONFINE_STEPS if init is None else _CONFINE_BESIDE_INIT
        self.groups: Sequence[int] = ()  # the cgroups that PID 1 has yet to enter

    def execute(self, step: s.Step) -> None:
        kind = type(step)
        if kind in _ROOT_STEPS:
            _ROOT_STEPS[kind](self.root, step)
        elif kind in self.confine:
            self.confine[kind](step)
        else:
            self._change_namespace(step)

    def enter_cgroups(self, groups: Sequence[int]) -> None:
        """Move into these cgroups, given by their open files, which are closed once PID 1 needn't enter them."""
        identity.enter_cgroups(groups)
        self.groups = groups
        if self.init is None:
            self._close_groups()

    def confine_init(self, plan: Sequence[s.Step], status: int) -> None:
        """Make PID 1, if it was left behind, enter the cgroups and confine itself; it gets the pipe for the status."""
        if self.init is not None:
            messages.send_packet(self.init, encode(shim.select_steps(plan)), status, *self.groups)
            self._close_groups()

    def _close_groups(self) -> None:
        for group in self.groups:
            os.close(group)
        self.groups = ()

    def start_program(self, step: s.Execute | s.RunScript, streams: Mapping[str, int], joined: bool) -> NoReturn:
        """Become the program, or its parent. ``streams`` are the status pipe, and standard output and error."""
        if self.init is not None:
            messages.receive_packet(self.init, messages.MAX_MESSAGE_BYTES)  # it is confined
            shim.become_program(step, self.control, streams["stdout"], streams["stderr"])
        if step.no_shim:
            program.exec_without_shim(step, self.control, streams["stdout"], streams["stderr"])
        if isinstance(step, s.Execute) and step.keeper:
            keeper.execute(step, self.control, **streams)
        if isinstance(step, s.Execute) and joined and step.terminal is None:
            shim.spawn(step, self.control, **streams)
        shim.execute(step, self.control, **streams)

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
    s.MountOverlay: Root.mount_overlay,
    s.MountTerminals: Root.mount_terminals,
    s.MountImage: Root.mount_image,
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
_CONFINE_BESIDE_INIT: Mapping[type, Callable[[Any], None]] = {**_CONFINE_STEPS, **shim.STEPS}
