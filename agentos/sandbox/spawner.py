"""Our side of the zygote: ask it for a process, watch that process walk its plan, hand out the handle.

The zygote is started before there is anything to hide from it, by the thread that lives as long as we do: what it makes
is bound to that thread's life. It only clones; each new process tells its own story over a socket of its own, so that
nobody waits for somebody else's mounts.
"""

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import Factory, define, frozen

import agentos_sdk

from . import handshake
from . import steps as s
from .errors import SandboxError as SandboxError
from .errors import StepFailed as StepFailed
from .errors import ZygoteDied as ZygoteDied
from .evidence import Observed, observe
from .handle import Sandbox
from .handshake import Ends, close_all
from .inside import messages
from .inside.janitor import Remains
from .inside.zygote import NAMESPACES
from .steps import Step

_CODE = str(Path(__file__).resolve().parents[2])  # where the package agentos lies
_START = (
    "import os, sys; sys.path.append(os.getcwd()); os.chdir('/'); "
    "from agentos.sandbox.inside.zygote import main; sys.path.pop(); main()"
)
_SDK = str(Path(agentos_sdk.__file__).resolve().parent)
_PATIENCE = 10  # seconds, for what takes the zygote a few milliseconds


@frozen
class _Born:
    """A new process: its pid, a pidfd, and descriptors of the namespaces that it was born with."""

    pid: int
    pidfd: int
    namespaces: Mapping[str, int]


@define
class Spawner:
    """Makes sandboxes. ``start`` it before Trio runs, ``close`` it when no sandbox is to come any more."""

    _zygote: "subprocess.Popen[bytes]"
    _channel: socket.socket
    _turn: trio.Lock
    _closed: bool = False
    _remains: Remains = Remains()
    _ours: set[int] = Factory(set)  # the children that somebody here waits for, by pid

    @classmethod
    def start(cls) -> "Spawner":
        """A spawner with its zygote; called by the main thread."""
        return cls(*_start_zygote(), trio.Lock())

    def close(self) -> None:
        """End the zygote; the sandboxes live on."""
        self._closed = True
        self._end_zygote()

    def bequeath(self, remains: Remains) -> None:
        """Have this ended and removed where we are killed; instead of what was to be before."""
        self._remains = remains
        with contextlib.suppress(ConnectionError):  # the next zygote is told
            self._channel.send(json.dumps({"remains": remains._asdict()}).encode())

    @property
    def zygote(self) -> int:
        """The zygote's pid."""
        return self._zygote.pid

    async def spawn(
        self,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        cgroup: int | None = None,
        look: Callable[[Observed, int], None] | None = None,
    ) -> Sandbox:
        """Walk the plan in a new process and run its program; return when that has been exec'ed.

        ``admit`` is called with the pid while the process waits, to put it into its cgroups; ``cgroup`` is a directory
        of cgroup v2 to be born in. ``look`` gets what was observed of the program, and its pid, before it begins: what
        that raises ends it. Both are called in a thread. :class:`StepFailed` where a step fails: then there is no
        process any more.
        """
        try:
            return await self._spawn(plan, admit, cgroup, look)
        except ZygoteDied:
            return await self._spawn(plan, admit, cgroup, look)

    async def enter(
        self,
        sandbox: Sandbox,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None = None,
        cgroup: int | None = None,
    ) -> Sandbox:
        """Run a further program beside a sandboxed one, in its namespaces and a PID namespace below its own.

        It ends with the sandbox, or before. The plan is one of :func:`agentos.sandbox.plan.enter`; the rest is as with
        :meth:`spawn`, but that what ``admit`` gets the pid of is the program's forebear. :class:`SandboxError` where
        the sandbox has ended or is frozen. A program in there may be able to stop the process on its way, so that this
        takes until somebody cancels it.
        """
        try:
            return await self._enter(sandbox, plan, admit, cgroup)
        except ZygoteDied:
            return await self._enter(sandbox, plan, admit, cgroup)

    async def listen(self, sandbox: Sandbox, port: int = 0) -> socket.socket:
        """A TCP listener on 127.0.0.1 as it is in the sandbox, not blocking. Port 0 is any that is free.

        :class:`SandboxError` where the sandbox has the host's network; :class:`StepFailed` where the port is taken.
        """
        try:
            return await self._listen(sandbox, port)
        except ZygoteDied:
            return await self._listen(sandbox, port)

    async def reap_strangers(self) -> bool:
        """Wait for the ended processes that programs left to us (we are their subreaper), or they'd stay zombies.

        False where one of our own hides others, until it is reaped itself: then ask again.
        """
        async with self._turn:  # what is just being made isn't known as ours yet
            return self._reap_strangers()

    def _reap_strangers(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in self._ours:
                    return False
                if found.si_pid == self._zygote.pid and self._zygote.returncode is None:
                    self._zygote.poll()  # the next spawn finds that out, and replaces it
                else:
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        return True

    async def _spawn(
        self,
        plan: Sequence[Step],
        admit: Callable[[int], None] | None,
        cgroup: int | None,
        look: Callable[[Observed, int], None] | None,
    ) -> Sandbox:
        with contextlib.ExitStack() as undo:
            ends, born = await self._bear(undo, plan, cgroup)
            undo.callback(close_all, *born.namespaces.values())
            async with self._or_end(born):
                await handshake.admit(ends.control, born.pid, admit)
                sandbox = await self._see_off(undo, ends, born, look)
        return sandbox

    async def _enter(
        self, sandbox: Sandbox, plan: Sequence[Step], admit: Callable[[int], None] | None, cgroup: int | None
    ) -> Sandbox:
        with contextlib.ExitStack() as undo:
            ends, born = await self._bear(undo, plan, cgroup, sandbox.to_enter)
            async with self._or_end(born):
                await handshake.admit(ends.control, born.pid, admit)
            for step in plan:
                if isinstance(step, s.Descend):
                    born = await self._relieve(ends.control, born)
            async with self._or_end(born):
                entered = await self._see_off(undo, ends, born)
        sandbox.accompany(entered)
        return entered

    async def _relieve(self, control: socket.socket, former: _Born) -> _Born:
        """The child that goes on in another's place; the other is waited for."""
        try:
            born = _Born(*await handshake.below(control, former.pid), {})
            self._ours.add(born.pid)
            await handshake.end(former.pidfd)
        except BaseException:
            await handshake.end_group(former.pid, former.pidfd)  # noqa: ASYNC102 - it shields itself
            raise
        finally:
            self._ours.discard(former.pid)
            os.close(former.pidfd)
        handshake.go(control)
        return born

    async def _listen(self, sandbox: Sandbox, port: int) -> socket.socket:
        with contextlib.ExitStack() as undo:
            ends, born = await self._bear(undo, (s.Join(), s.Listen(port)), None, sandbox.to_listen_in)
            async with self._or_end(born):
                await handshake.admit(ends.control, born.pid, None)
                listener = await handshake.listening(ends.control)
            await self._end(born)
        return listener

    async def _see_off(
        self,
        undo: contextlib.ExitStack,
        ends: Ends,
        born: _Born,
        look: Callable[[Observed, int], None] | None = None,
    ) -> Sandbox:
        """See a process through its plan, up to its exec. What it has is nothing to undo any more then."""
        program, found = await handshake.confined(ends.control)
        undo.callback(close_all, *found.values())
        tmpfs = {place: found.pop(place) for place in tuple(found) if place.startswith("/")}
        namespaces = {**born.namespaces, **found}
        try:
            observed = observe(program, {name: os.fstat(fd).st_ino for name, fd in namespaces.items()})
        except (FileNotFoundError, ProcessLookupError):
            raise SandboxError("the process ended before it was the program") from None
        if look is not None:
            await trio.to_thread.run_sync(look, observed, program)
        await handshake.running(ends.control)
        undo.pop_all()
        ends.control.close()
        return Sandbox(
            *(born.pid, program, born.pidfd, ends.stdout, ends.stderr, namespaces, observed, ends.last_word),
            self._ours.discard,
            tmpfs=tmpfs,
        )

    @contextlib.asynccontextmanager
    async def _or_end(self, born: _Born) -> AsyncIterator[None]:
        """Where something goes wrong with a process, it is ended and waited for."""
        try:
            yield
        except BaseException:
            await self._end(born)  # noqa: ASYNC102 - it shields itself
            raise

    async def _end(self, born: _Born) -> None:
        await handshake.end(born.pidfd)
        self._ours.discard(born.pid)
        os.close(born.pidfd)

    async def _bear(
        self,
        undo: contextlib.ExitStack,
        plan: Sequence[Step],
        cgroup: int | None,
        to_join: Callable[[], Mapping[str, int]] = dict,
    ) -> tuple[Ends, _Born]:
        """A process that waits to be let go, with what connects us; its descriptors are the caller's to close."""
        async with self._turn:
            with trio.CancelScope(shield=True):  # a request without its answer would be answered to the next
                ends = handshake.connect(undo)
                born = await self._ask(plan, ends, cgroup, to_join)
        return ends, born

    async def _ask(
        self, plan: Sequence[Step], ends: Ends, cgroup: int | None, to_join: Callable[[], Mapping[str, int]]
    ) -> _Born:
        try:
            if self._closed:
                raise SandboxError("the spawner is closed")
            ours = s.encode(s.for_zygote(plan))
            with _as_file(ours + s.encode(s.for_child(plan))) as file:
                join = to_join()  # now: at the next checkpoint these numbers may be other files'
                fds = [file, *ends.theirs, *([] if cgroup is None else [cgroup]), *join.values()]
                answer, new = await self._exchange(
                    {"ours": len(ours), "cgroup": cgroup is not None, "join": list(join)}, fds
                )
        finally:
            close_all(*ends.theirs)
        if answer is None:
            self._end_zygote()  # first: it may hold their ends
            await handshake.bury(ends.control)
            self._zygote, self._channel = _start_zygote()
            self.bequeath(self._remains)
            raise ZygoteDied("the zygote died")
        if "errno" in answer:
            for pidfd in new:  # it had been born, and was killed
                await handshake.end(pidfd)
                os.close(pidfd)
            raise StepFailed(answer["step"], answer["errno"], answer["text"])
        names = () if join else NAMESPACES  # who joins some has none of its own
        if len(new) != 1 + len(names):
            close_all(*new)
            await handshake.bury(ends.control)
            raise SandboxError("too many files are open here to take those of one more sandbox")
        self._ours.add(answer["pid"])
        return _Born(answer["pid"], new[0], dict(zip(names, new[1:], strict=True)))

    async def _exchange(
        self, request: dict[str, object], fds: Sequence[int]
    ) -> tuple[dict[str, Any] | None, list[int]]:
        """One request and its answer; ``None`` where there is nobody to answer."""
        try:
            with trio.fail_after(_PATIENCE):
                self._channel.sendmsg([json.dumps(request).encode()], [_rights(fds)])
                return await _receive(self._channel)
        except (OSError, trio.TooSlowError):
            return None, []

    def _end_zygote(self) -> None:
        self._zygote.kill()
        self._zygote.wait()
        self._channel.close()  # not before: that is what it knows our end by


def _start_zygote() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(its.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=_CODE,  # not an argument: programs can read those of their PID 1
            env={},
            start_new_session=True,
            pass_fds=(its.fileno(),),
        )
    ours.settimeout(_PATIENCE)
    try:
        ours.send(os.fsencode(_SDK))
        ready = ours.recv(messages.MAX_MESSAGE)
    except (TimeoutError, ConnectionError):
        ready = b""
    if not ready:
        process.kill()
        status = process.wait()
        ours.close()
        raise ZygoteDied(f"the zygote could not be started: exit status {status}")
    ours.setblocking(False)
    return process, ours


async def _receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The zygote's answer and the descriptors with it; ``None`` where it has died."""
    space = socket.CMSG_SPACE((1 + len(NAMESPACES)) * 4)
    while True:
        try:
            data, ancillary, _, _ = channel.recvmsg(messages.MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(channel)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (json.loads(data) if data else None), list(fds)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[int]:
    """A descriptor to read this from: a plan with its environment is more than a packet holds."""
    fd = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        yield fd
    finally:
        os.close(fd)


def _rights(fds: Sequence[int]) -> tuple[int, int, "array.array[int]"]:
    return (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
