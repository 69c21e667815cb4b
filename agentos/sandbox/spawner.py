"""Start sandboxes: ask the zygote for a process, wait until it has done its plan, return its handle.

The zygote only clones. Each new process reports over its own socket, so a slow mount in one doesn't delay another.
"""

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import trio
from attrs import Factory, define, evolve

from . import handshake
from . import plan as p
from . import steps as s
from .cgroups.values import CgroupEntry
from .errors import SandboxError as SandboxError
from .errors import StepFailed as StepFailed
from .errors import ZygoteDied as ZygoteDied
from .handshake import Born, Ends, close_all
from .inside import messages
from .inside.janitor import Remains
from .report.walls import Observed, observe
from .sandbox import Sandbox, has_ended, reap
from .steps import Step
from .zygote import TIMEOUT, Zygote, as_file

REAP_AGAIN = 0.05  # seconds between two batches of zombies
_NOWHERE = CgroupEntry()


def _everybodys_birth() -> s.Clone | None:
    """Return the Clone step for processes cloned ahead; ``None`` with root, as the host uid isn't known ahead."""
    return p.birth(p.Outer(os.geteuid(), os.getegid()), is_root=False) if os.geteuid() != 0 else None


@define
class Spawner:
    """Starts sandboxes. Call ``start`` before Trio runs, and ``close`` when no further sandbox is needed."""

    _zygote: Zygote
    _turn: trio.Lock = Factory(trio.Lock)
    _ours: set[int] = Factory(set)  # pids of the children that a task here waits for
    _spare: Born | None = None  # cloned ahead
    _birth: s.Clone | None = Factory(_everybodys_birth)

    @classmethod
    def start(cls, zygote_timeout: float = TIMEOUT) -> "Spawner":
        """Start a spawner with its zygote; called by the main thread.

        :class:`ZygoteDied` if the zygote isn't ready within ``zygote_timeout`` seconds; a request has the same limit.
        """
        return cls(Zygote.start(zygote_timeout))

    def close(self) -> None:
        """End the zygote; running sandboxes continue."""
        self._zygote.close()
        if self._spare is not None:
            signal.pidfd_send_signal(self._spare.pidfd, signal.SIGKILL)
            self._lose(self._spare)

    def bequeath(self, remains: Remains) -> None:
        """Set what the zygote kills and removes if the kernel is killed; replaces the former value."""
        self._zygote.bequeath(remains)

    @property
    def zygote(self) -> int:
        """The zygote's pid."""
        return self._zygote.pid

    async def prepare(self) -> None:
        """Clone a spare process in new namespaces for the next plan that needs all of them.

        The next spawn is then some milliseconds shorter and uses the spare; call this again for another one. Mounts,
        visible files and control groups are decided only at that spawn.
        """
        async with self._turn:
            if self._spare is None and not self._zygote.closed:
                with contextlib.suppress(SandboxError, OSError):  # the next spawn reports the error
                    self._spare = await self._born_ahead()

    async def spawn(
        self,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        into: CgroupEntry = _NOWHERE,
        look: Callable[[Observed, int], None] | None = None,
    ) -> Sandbox:
        """Run the plan and its program in a new process; return when the program has been exec'ed.

        ``admit`` is called with the pid while the process waits, before it is moved ``into`` its cgroups. ``look`` is
        called with what was observed of the program, and its pid, before the program starts; an exception from it ends
        the program. Both are called in a thread. :class:`StepFailed` if a step fails: the process has then ended.
        """
        try:
            return await self._spawn(plan, admit, into, look)
        except ZygoteDied:
            return await self._spawn(plan, admit, into, look)

    async def enter(
        self,
        sandbox: Sandbox,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        into: CgroupEntry = _NOWHERE,
    ) -> Sandbox:
        """Run a further program in a sandbox, in its namespaces and in a PID namespace below the sandbox's own.

        It ends with the sandbox, or before. The plan is one of :func:`agentos.sandbox.plan.enter`. The rest is as for
        :meth:`spawn`, except that ``admit`` gets the pid of the process that the program descends from.
        :class:`SandboxError` if the sandbox has ended or is frozen. A program in the sandbox may be able to stop the
        entering process, so this can block until it is cancelled.
        """
        try:
            return await self._enter(sandbox, plan, admit, into)
        except ZygoteDied:
            return await self._enter(sandbox, plan, admit, into)

    async def listen(self, sandbox: Sandbox, port: int = 0) -> socket.socket:
        """Open a TCP listener on the sandbox's 127.0.0.1, not blocking. Port 0 is any free port.

        :class:`SandboxError` if the sandbox has the host's network; :class:`StepFailed` if the port is taken.
        """
        try:
            return await self._listen(sandbox, port)
        except ZygoteDied:
            return await self._listen(sandbox, port)

    async def reap_strangers(self) -> bool:
        """Reap ended processes that programs left to us (we are their subreaper), so that none stays a zombie.

        False if an ended child of our own hides others until it is reaped: then call again.
        """
        async with self._turn:  # a process that is being cloned isn't in _ours yet
            return self._reap_strangers()

    async def serve(self) -> None:
        """Reap such processes until cancelled; as zombies they would use up the pids."""
        with trio.open_signal_receiver(signal.SIGCHLD) as signals:
            async for _ in signals:
                done = False
                while not done:
                    done = await self.reap_strangers()
                    await trio.sleep(REAP_AGAIN)  # many of them are reaped in batches

    def _reap_strangers(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self._spare is not None and found.si_pid == self._spare.pid:
                    self._lose(self._spare)
                    continue
                if found.si_pid in self._ours:
                    return False
                if not self._zygote.is_dead(found.si_pid):
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        return True

    async def _spawn(
        self,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None,
        into: CgroupEntry,
        look: Callable[[Observed, int], None] | None,
    ) -> Sandbox:
        with contextlib.ExitStack() as undo:
            ends = handshake.pipes(undo)
            born = await self._set_off(undo, ends, plan, admit, into)
            async with self._or_end(born):
                sandbox = await self._see_off(undo, ends, born, look)
            sandbox.kept = isinstance(plan[-1], s.Execute) and plan[-1].kept
            return sandbox

    async def _enter(
        self, sandbox: Sandbox, plan: Sequence[Step], admit: Callable[[int], None] | None, into: CgroupEntry
    ) -> Sandbox:
        with contextlib.ExitStack() as undo:
            ends = handshake.pipes(undo)
            born = await self._set_off(undo, ends, plan, admit, into, sandbox.to_enter)
            for step in plan:
                if isinstance(step, s.Descend):
                    born = await self._relieve(born)
            async with self._or_end(born):
                entered = await self._see_off(undo, ends, born)
        sandbox.accompany(entered)
        return entered

    async def _relieve(self, former: Born) -> Born:
        """Return the child that continues in another process's place, and reap that process."""
        try:
            pid, pidfd = await handshake.below(former.control, former.pid)
            born = Born(pid, pidfd, former.control)
            self._ours.add(born.pid)
            await handshake.end(former.pidfd)
        except BaseException:
            await handshake.end_group(former.pid, former.pidfd)  # noqa: ASYNC102 - it shields itself
            raise
        finally:
            self._ours.discard(former.pid)
            os.close(former.pidfd)
        handshake.go(born.control)
        return born

    async def _listen(self, sandbox: Sandbox, port: int) -> socket.socket:
        with contextlib.ExitStack() as undo:
            ends = handshake.pipes(undo)
            plan = (s.Join(), s.Listen(port))
            born = await self._set_off(undo, ends, plan, None, _NOWHERE, sandbox.to_listen_in)
            async with self._or_end(born):
                listener = await handshake.listening(born.control)
            await self._end(born)
        return listener

    async def _see_off(
        self,
        undo: contextlib.ExitStack,
        ends: Ends,
        born: Born,
        look: Callable[[Observed, int], None] | None = None,
    ) -> Sandbox:
        """Wait until a process has done its plan and is exec'ed; its descriptors then belong to the sandbox."""
        program, found = await handshake.confined(born.control)
        undo.callback(close_all, *found.values())
        listener = found.pop("listener", None)
        tmpfs = {place: found.pop(place) for place in tuple(found) if place.startswith("/")}
        namespaces = {**born.namespaces, **found}
        try:
            observed = observe(program, {name: os.fstat(fd).st_ino for name, fd in namespaces.items()})
        except (FileNotFoundError, ProcessLookupError):
            raise SandboxError("the process ended before it was the program") from None
        if look is not None:
            await trio.to_thread.run_sync(look, observed, program)
        await handshake.running(born.control)
        undo.pop_all()
        born.control.close()
        return Sandbox(
            *(born.pid, program, born.pidfd, ends.stdout, ends.stderr, namespaces, observed, ends.last_word),
            self._ours.discard,
            tmpfs=tmpfs,
            listener=handshake.as_listener(listener) if listener is not None else None,
        )

    @contextlib.asynccontextmanager
    async def _or_end(self, born: Born) -> AsyncIterator[None]:
        """On any exception, kill the process and wait for it."""
        try:
            yield
        except BaseException:
            await self._end(born)  # noqa: ASYNC102 - it shields itself
            raise

    async def _end(self, born: Born) -> None:
        await handshake.end(born.pidfd)
        self._ours.discard(born.pid)
        os.close(born.pidfd)

    def _lose(self, spare: Born) -> None:
        """Reap the spare process, which has ended or been killed, and forget it."""
        reap(spare.pidfd)
        os.close(spare.pidfd)
        spare.control.close()
        self._ours.discard(spare.pid)
        self._spare = None

    async def _set_off(
        self,
        undo: contextlib.ExitStack,
        ends: Ends,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None,
        into: CgroupEntry,
        to_join: Callable[[], Mapping[str, int]] = dict,
    ) -> Born:
        """Start a process on this plan; ``undo`` closes our descriptors of it."""
        with contextlib.ExitStack() as sent:
            sent.callback(close_all, *ends.theirs.values())
            if isinstance(plan[0], s.Join) != (to_join is not dict):
                raise SandboxError("this plan is for another request")
            async with self._turn:
                born, rest = await self._bear(plan, into)
                undo.callback(born.control.close)
                async with self._or_end(born):
                    born = evolve(born, namespaces=_opened(undo, born.pid, _namespaces_of(plan[0])))
                    ours = s.encode(s.for_zygote(rest))
                    file = sent.enter_context(as_file(ours, s.encode(s.for_child(rest))))
                    walls = isinstance(rest[0], s.Clone) and rest[0].flags != 0
                    trees = await self._zygote.dress(born, file, len(ours)) if walls else {}
            sent.callback(close_all, *trees.values())
            async with self._or_end(born):
                if admit is not None:
                    await trio.to_thread.run_sync(admit, born.pid)
                groups = {f"{messages.GROUP}{number}": fd for number, fd in enumerate(into.tasks)}
                join = to_join()  # must be last: at the next checkpoint these fds may be reused for other files
                handshake.give(born.control, {"plan": file, **ends.theirs, **groups, **trees, **join})
        return born

    async def _born_ahead(self) -> Born:
        with contextlib.ExitStack() as undo:
            born = await self._clone(p.AHEAD)
            undo.callback(born.control.close)
            async with self._or_end(born):
                ours = s.encode([self._birth]) if self._birth is not None else b""
                with as_file(ours, s.encode([kind() for kind in p.READY])) as file:
                    if ours:
                        await self._zygote.dress(born, file, len(ours))
                    handshake.give(born.control, {"plan": file})
            undo.pop_all()
        return born

    async def _bear(self, plan: Sequence[Step], into: CgroupEntry) -> tuple[Born, Sequence[Step]]:
        """Return a waiting process and the steps that it has yet to do; uses the spare if it fits."""
        flags = plan[0].flags if isinstance(plan[0], s.Clone) else 0
        if self._spare is not None and into.directory is None and self._can_be_ahead(plan):
            born = self._spare
            if not has_ended(born.pidfd):
                self._spare = None
                return born, [step for step in plan if step != self._birth and not isinstance(step, p.READY)]
            self._lose(born)
        return await self._clone(flags, into.directory), plan

    async def _clone(self, flags: int, directory: int | None = None) -> Born:
        born = await self._zygote.clone(flags, directory)
        self._ours.add(born.pid)
        return born

    def _can_be_ahead(self, plan: Sequence[Step]) -> bool:
        first = plan[0]
        if not isinstance(first, s.Clone) or not set(map(type, plan)).issuperset(p.READY):
            return False
        return first == self._birth if self._birth is not None else first.flags == p.AHEAD


def _namespaces_of(first: Step) -> Sequence[str]:
    """Return the namespaces to open at birth. A process itself sends those that it joins or unshares later."""
    if not isinstance(first, s.Clone):
        return ()
    return ("user", "pid", "net", "uts", "ipc") if first.flags else ("user", "pid", "net", "uts", "ipc", "mnt")


def _opened(undo: contextlib.ExitStack, pid: int, names: Sequence[str]) -> Mapping[str, int]:
    """Open its namespaces. Must be done while it waits: later it isn't dumpable, and without root open is denied."""
    found = {}
    for name in names:
        found[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, found[name])
    return found
