"""Start sandboxes: ask the zygote for a process, wait until it has done its plan, return its handle.

The zygote only clones. Each new process reports over its own socket, so a slow mount in one doesn't delay another.
"""

import contextlib
import functools
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import trio
from attrs import Factory, define

from agentos.sandbox import steps as s
from agentos.sandbox.builder import Builder
from agentos.sandbox.cgroups.values import CgroupEntry
from agentos.sandbox.encoded_steps import encode_plan
from agentos.sandbox.errors import ProcessEnded, SandboxError, ZygoteDied
from agentos.sandbox.files.root_files import GID, UID
from agentos.sandbox.inside import messages
from agentos.sandbox.report.walls import Observed, read_observed
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.steps import SocketAddress, Step
from agentos.threads import Limiter

from . import handshake
from .ahead import TakenJail
from .closer import Closer
from .handshake import NewProcess, ProcessPipes, close_all
from .zygote import TIMEOUT, Zygote, plan_file

REAP_AGAIN = 0.05  # seconds between two batches of zombies
_NO_CGROUP = CgroupEntry()

P = ParamSpec("P")
T = TypeVar("T")

Inspect = Callable[[Observed, int], Awaitable[None]]


def _again_after(*deaths: type[SandboxError]) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Do a request a second time if it fails for one of these reasons."""

    def decorate(do: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(do)
        async def attempt(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return await do(*args, **kwargs)
            except deaths:
                return await do(*args, **kwargs)

        return attempt

    return decorate


@define
class Spawner:
    """Starts sandboxes. Call ``start`` before Trio runs, and ``close`` when no further sandbox is needed."""

    zygote: Zygote
    _lock: Limiter = Factory(lambda: Limiter(1))
    _children: set[int] = Factory(set)  # pids of the children that a task here waits for
    closer: Closer = Factory(Closer)  # of the namespaces and mounts of ended sandboxes
    builder: Builder = Factory(lambda self: Builder(self.zygote, self._lock, self._children), takes_self=True)

    @classmethod
    def start(cls, zygote_timeout: float = TIMEOUT) -> "Spawner":
        """Start a spawner with its zygote; called by the main thread.

        :class:`ZygoteDied` if the zygote isn't ready within ``zygote_timeout`` seconds; a request has the same limit.
        """
        return cls(Zygote.start(zygote_timeout))

    def close(self) -> None:
        """End the zygote; running sandboxes continue."""
        self.zygote.close()
        self.builder.close()

    @_again_after(ProcessEnded, ZygoteDied)
    async def spawn(
        self,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        cgroup: CgroupEntry = _NO_CGROUP,
        inspect: Inspect | None = None,
        taken: TakenJail | None = None,
    ) -> Sandbox:
        """Run the plan and its program in a new process; return when the program has been exec'ed.

        ``taken`` is a jail that has waited for this plan, in this ``cgroup``, see :meth:`.Builder.take`.
        ``admit`` is called in a thread with the pid while the process waits, before it is moved into its ``cgroup``.
        ``inspect`` is awaited with what was observed of the program, and its pid, before the program starts; an
        exception from it ends the program. :class:`StepFailed` if a step fails: the process has then ended. Another
        process is started once if it is killed before, or if the zygote dies.
        """
        with contextlib.ExitStack() as undo:
            pipes = handshake.open_pipes(undo, plan[-1])
            process = await self._launch(undo, pipes, plan, admit, cgroup, taken=taken)
            async with self._kill_on_error(process):
                sandbox = await self._wait_exec(undo, pipes, process, inspect)
            if isinstance(plan[-1], s.Execute | s.RunScript):
                sandbox.no_shim = plan[-1].no_shim
                sandbox.has_keeper = isinstance(plan[-1], s.Execute) and plan[-1].keeper
            return sandbox

    @_again_after(ZygoteDied)
    async def enter(
        self,
        sandbox: Sandbox,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        cgroup: CgroupEntry = _NO_CGROUP,
    ) -> Sandbox:
        """Run a further program in a sandbox, in its namespaces and in a PID namespace below the sandbox's own.

        It ends with the sandbox, or before. The plan is one of :func:`.plan.plan_entry`. The rest is as for
        :meth:`spawn`, except that ``admit`` gets the pid of the process that the program descends from.
        :class:`SandboxError` if the sandbox has ended or is frozen. A program in the sandbox may be able to stop the
        entering process, so this can block until it is cancelled.
        """
        with contextlib.ExitStack() as undo:
            pipes = handshake.open_pipes(undo, plan[-1])
            joiner = await self._launch(undo, pipes, plan, admit, cgroup, sandbox.namespaces_to_enter)
            try:
                process = await handshake.receive_descendant(undo, joiner.control, joiner.pid)
                self._children.add(process.pid)
                async with self._kill_on_error(process):
                    handshake.send_go(process.control)
                    entered = await self._wait_exec(undo, pipes, process)
            finally:  # by now the new process has left the joiner's group, or has ended
                await handshake.kill_and_reap_group(joiner.pid, joiner.pidfd)  # noqa: ASYNC102 - it shields itself
                self._children.discard(joiner.pid)
                os.close(joiner.pidfd)
        sandbox.register_entered(entered)
        return entered

    @_again_after(ZygoteDied)
    async def listen(self, sandbox: Sandbox, addresses: Sequence[SocketAddress]) -> Sequence[socket.socket]:
        """Open sockets at these addresses of the sandbox's own network, not blocking: all of them, or none.

        TCP sockets listen. :class:`SandboxError` if the sandbox has the host's network or has ended;
        :class:`StepFailed` if a port is taken.
        """
        with contextlib.ExitStack() as undo:
            pipes = handshake.open_pipes(undo)
            plan = (s.Join(), s.TakeIdentity(UID, GID, os.geteuid() == 0), s.Listen(tuple(addresses)))
            process = await self._launch(undo, pipes, plan, None, _NO_CGROUP, sandbox.namespaces_to_listen)
            async with self._kill_on_error(process):
                sockets = await handshake.receive_sockets(process.control, len(addresses))
            await self._kill(process)
        return sockets

    async def reap_orphans(self) -> bool:
        """Reap ended processes that programs left to us (we are their subreaper), so that none stays a zombie.

        False if an ended child of our own hides others until it is reaped: then call again.
        """
        async with self._lock:  # a process that is being cloned isn't in _children yet
            return self._reap_orphans()

    async def serve(self) -> None:
        """Reap such processes until cancelled; as zombies they would use up the pids."""
        with trio.open_signal_receiver(signal.SIGCHLD) as signals:
            async for _ in signals:
                done = False
                while not done:
                    done = await self.reap_orphans()
                    await trio.sleep(REAP_AGAIN)  # many of them are reaped in batches

    def _reap_orphans(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self.builder.reap(found.si_pid):
                    continue
                if found.si_pid in self._children:
                    return False
                if not self.zygote.is_dead(found.si_pid):
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        return True

    async def _wait_exec(
        self,
        undo: contextlib.ExitStack,
        pipes: ProcessPipes,
        process: NewProcess,
        inspect: Inspect | None = None,
    ) -> Sandbox:
        """Wait until a process has done its plan and is exec'ed; its descriptors then belong to the sandbox."""
        program, found = await handshake.wait_confined(process.control)
        undo.callback(close_all, *found.values())
        sockets = [found.pop(name) for name in tuple(found) if name.startswith(messages.SOCKET_PREFIX)]
        tmpfs = {place: found.pop(place) for place in tuple(found) if place.startswith("/")}
        namespaces = {**process.namespaces, **found}
        try:
            observed = read_observed(program, {name: os.fstat(fd).st_ino for name, fd in namespaces.items()})
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessEnded("the process ended before it was the program") from None
        if inspect is not None:
            await inspect(observed, program)
        await handshake.wait_exec(process.control)
        undo.pop_all()
        process.control.close()
        return Sandbox(
            *(process.pid, program, process.pidfd, pipes.stdout, pipes.stderr, namespaces, observed, pipes.status),
            self._bury,
            tmpfs=tmpfs,
            sockets=handshake.wrap_sockets(sockets),
        )

    def _bury(self, pid: int, fds: Sequence[int]) -> None:
        """Forget an ended child, and have its namespaces and mounts closed."""
        self._children.discard(pid)
        self.closer.close(fds)

    @contextlib.asynccontextmanager
    async def _kill_on_error(self, process: NewProcess) -> AsyncIterator[None]:
        """On any exception, kill the process and wait for it."""
        try:
            yield
        except BaseException:
            await self._kill(process)  # noqa: ASYNC102 - it shields itself
            raise

    async def _kill(self, process: NewProcess) -> None:
        await handshake.kill_and_reap(process.pidfd)
        self._children.discard(process.pid)
        os.close(process.pidfd)

    async def _launch(
        self,
        undo: contextlib.ExitStack,
        pipes: ProcessPipes,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None,
        cgroup: CgroupEntry,
        get_namespaces: Callable[[], Mapping[str, int]] = dict,
        taken: TakenJail | None = None,
    ) -> NewProcess:
        """Start a process on this plan; ``undo`` closes our descriptors of it."""
        with contextlib.ExitStack() as sent:
            sent.callback(close_all, *pipes.child_ends.values())
            if isinstance(plan[0], s.Join) != (get_namespaces is not dict):
                raise SandboxError("this plan does not fit the request: spawn needs Clone first, enter needs Join")
            async with self._lock:
                process, steps = await self._take_or_clone(plan, cgroup, taken)
                undo.callback(process.control.close)
                async with self._kill_on_error(process):
                    if isinstance(plan[0], s.Clone):
                        process = await handshake.open_namespaces(undo, process)
                    zygote_steps, rest = encode_plan(steps)
                    file = sent.enter_context(plan_file(zygote_steps, rest))
                    prepared = isinstance(steps[0], s.Clone) and steps[0].flags != 0
                    trees = await self.zygote.prepare_mounts(process, file, len(zygote_steps)) if prepared else {}
            sent.callback(close_all, *trees.values())
            async with self._kill_on_error(process):
                if admit is not None:
                    await trio.to_thread.run_sync(admit, process.pid)
                groups = {f"{messages.CGROUP_PREFIX}{number}": fd for number, fd in enumerate(cgroup.tasks)}
                join = get_namespaces()  # must be last: at the next checkpoint these fds may be reused for other files
                handshake.send_descriptors(
                    process.control, {"plan": file, **pipes.child_ends, **groups, **trees, **join}
                )
        return process

    async def _take_or_clone(
        self, plan: Sequence[Step], cgroup: CgroupEntry, taken: TakenJail | None
    ) -> tuple[NewProcess, Sequence[Step]]:
        """Return a waiting process and the steps that it has yet to do: one built ahead, if one fits this plan."""
        if taken is not None and self.builder.use(taken):  # not in a second attempt
            return taken.process, taken.rest
        if cgroup.directory is None and (taken := await self.builder.take(plan)) is not None:
            return taken.process, taken.rest
        flags = plan[0].flags if isinstance(plan[0], s.Clone) else 0
        return await self._clone(flags, cgroup.directory), plan

    async def _clone(self, flags: int, directory: int | None = None) -> NewProcess:
        process = await self.zygote.clone(flags, directory)
        self._children.add(process.pid)
        return process
