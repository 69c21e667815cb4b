"""The kernel's side of the zygote: requests and answers, and a restart when it has died.

It is started before the kernel holds any secret, by the thread that lives as long as the kernel does: its children are
bound to that thread's life.
"""

import array
import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio
from attrs import define

import agentos_sdk
from agentos.sandbox.errors import SandboxError, StepFailed, ZygoteDied
from agentos.sandbox.inside import messages
from agentos.sandbox.inside.janitor import Cleanup

from . import handshake
from .handshake import NewProcess, close_all

log = logging.getLogger(__name__)

_CODE = str(Path(__file__).resolve().parents[3])  # the directory of the package agentos
_START_CODE = (
    "import gc, os, sys; gc.disable(); sys.path.append(os.getcwd()); os.chdir('/'); "  # imports leave no garbage
    "from agentos.sandbox.inside.zygote import main; sys.path.pop(); main()"
)
_SDK = str(Path(agentos_sdk.__file__).resolve().parent)
TIMEOUT = 30.0  # seconds; an idle host needs a few milliseconds
REMEDY = "on a slow host set a longer zygote_timeout under [kernel]"
_TOO_MANY = "too many open files: the kernel can't take the descriptors of"


@define
class Zygote:
    """Client of the zygote process. One request at a time: callers must take turns."""

    _process: "subprocess.Popen[bytes]"
    _channel: socket.socket
    _timeout: float  # seconds, for its start and for each answer
    closed: bool = False
    has_sample: bool = False  # it knows the memory that programs write to
    _cleanup: Cleanup = Cleanup()

    @classmethod
    def start(cls, timeout: float = TIMEOUT) -> "Zygote":
        """Start a zygote, in the main thread. :class:`ZygoteDied` if it isn't ready within ``timeout`` seconds."""
        zygote = cls(*_launch(), timeout)
        if not select.select([zygote._channel], [], [], timeout)[0]:
            raise zygote._startup_error(in_time=False)
        zygote._take_ready()
        return zygote

    def close(self) -> None:
        """End it permanently."""
        self.closed = True
        self._stop()

    def set_cleanup(self, cleanup: Cleanup) -> None:
        """Set what the zygote kills and removes if the kernel is killed; replaces the former value."""
        self._cleanup = cleanup
        with contextlib.suppress(ConnectionError):  # the next zygote gets it
            self._channel.send(json.dumps({"cleanup": cleanup._asdict()}).encode())

    def set_sample(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Set the memory that waiting children copy, as addresses and sizes in bytes. A new zygote has none."""
        self.has_sample = True
        with contextlib.suppress(OSError):  # it has ended, is closed, or doesn't read: a hint isn't worth waiting for
            self._channel.send(json.dumps({"sample": ranges}, separators=(",", ":")).encode())

    @property
    def pid(self) -> int:
        """Its pid, which changes with each restart."""
        return self._process.pid

    def is_dead(self, pid: int) -> bool:
        """Whether this ended child was the zygote; the next request finds that out and starts another one."""
        if pid != self.pid or self._process.returncode is not None:
            return False
        self._process.poll()
        return True

    async def clone(self, flags: int, directory: int | None = None) -> NewProcess:
        """Clone a child of ours that waits. ``flags`` are CLONE_NEW*, ``directory`` is a cgroup v2 to clone it into."""
        process, _ = await self._clone({"clone": flags}, [] if directory is None else [directory])
        return process

    async def clone_prepared(
        self, flags: int, plan: int, size: int, directory: int | None = None
    ) -> tuple[NewProcess, dict[str, int]]:
        """As :meth:`clone`, and make the zygote do its part of the child's plan, in one request."""
        return await self._clone({"clone": flags, "size": size}, [plan] if directory is None else [plan, directory])

    async def prepare_mounts(self, born: NewProcess, plan: int, size: int) -> dict[str, int]:
        """Make the zygote do its part of a plan; returns the descriptors of the sources by target."""
        answer, trees = await self._ask({"prepare": born.pid, "size": size}, [plan])
        if "errno" in answer:
            raise _step_failed(answer)
        if len(trees) != len(answer["targets"]):
            close_all(*trees)
            raise SandboxError(f"{_TOO_MANY} the sources of another sandbox")
        return dict(zip(answer["targets"], trees, strict=True))

    async def _clone(self, request: dict[str, object], more: Sequence[int]) -> tuple[NewProcess, dict[str, int]]:
        """Returns the child, and the descriptors of the sources by target if the request has the size of a plan."""
        control, child_end = handshake.open_control_socket()
        try:
            with child_end:
                answer, new = await self._ask(request, [child_end.fileno(), *more])
            if "errno" in answer:
                raise _step_failed(answer)
            targets = answer.get("targets", ())
            if len(new) != 1 + len(targets):
                close_all(*new)
                raise SandboxError(f"{_TOO_MANY} another sandbox")
        except BaseException:  # there may be a child all the same
            await handshake.reap_unreported(control)  # noqa: ASYNC102 - it shields itself
            control.close()
            raise
        return NewProcess(answer["pid"], new[0], control), dict(zip(targets, new[1:], strict=True))

    async def _ask(self, request: dict[str, object], fds: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        if self.closed:
            raise SandboxError("the spawner is closed")
        try:
            return await self._exchange(request, fds)
        except ZygoteDied as died:
            log.warning("%s; another one is started", died)
            with trio.CancelScope(shield=True):
                await self._replace()
            raise

    async def _exchange(self, request: dict[str, object], fds: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Send one request and wait for its answer; :class:`ZygoteDied` if none comes."""
        what = "clone a process" if "clone" in request else "open the files of an agent"
        answer: dict[str, Any] | None = None
        new: list[int] = []
        # Shielded: a cancelled request's answer would be taken for that of the next.
        with (
            trio.CancelScope(shield=True, deadline=trio.current_time() + self._timeout) as exchange,
            contextlib.suppress(OSError),
        ):
            socket.send_fds(self._channel, [msgspec.json.encode(request)], fds)
            answer, new = await _receive(self._channel)
        if exchange.cancelled_caught:
            reason = f"took longer than {self._timeout:g} s to {what}: {REMEDY}"
            raise ZygoteDied(f"the zygote, which starts all agents, {reason}")
        if answer is None:
            raise ZygoteDied("the zygote, which starts all agents, died")
        return answer, new

    async def _replace(self) -> None:
        """End it and start another one. The event loop continues meanwhile."""
        self._stop()
        self.has_sample = False
        self._process, self._channel = _launch()
        try:
            with trio.fail_after(self._timeout):
                await trio.lowlevel.wait_readable(self._channel)
        except trio.TooSlowError:
            raise self._startup_error(in_time=False) from None
        self._take_ready()
        self.set_cleanup(self._cleanup)

    def _take_ready(self) -> None:
        """Take its report that it is ready, or that its channel is closed: then it has ended."""
        ready = b""
        with contextlib.suppress(ConnectionError):
            ready = self._channel.recv(messages.MAX_MESSAGE_BYTES)
        if not ready:
            raise self._startup_error(in_time=True)

    def _startup_error(self, in_time: bool) -> ZygoteDied:
        """End it, and return the exception that says why."""
        self._stop()
        what = "the zygote, which starts all agents,"
        if in_time:
            return ZygoteDied(f"{what} ended at once: exit status {self._process.returncode}")
        return ZygoteDied(f"{what} was not ready within {self._timeout:g} s: {REMEDY}")

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()  # last: by its end of file the zygote learns that the kernel has ended


def _launch() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a new zygote, which reports when it is ready; returns it and our end of its channel."""
    ours, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with child_end:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START_CODE, str(child_end.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=_CODE,  # not an argument: programs can read the arguments of their PID 1
            env={},
            start_new_session=True,
            pass_fds=(child_end.fileno(),),
        )
    with contextlib.suppress(ConnectionError):  # it ended at once; the caller sees end of file
        ours.send(os.fsencode(_SDK))
    ours.setblocking(False)
    return process, ours


async def _receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive the zygote's answer and its descriptors; ``None`` if it has died."""
    space = socket.CMSG_SPACE(messages.MAX_FDS * 4)  # socket.recv_fds ignores flags in Python 3.11
    while True:
        try:
            data, ancillary, _, _ = channel.recvmsg(messages.MAX_NAMES_BYTES, space, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(channel)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (json.loads(data) if data else None), list(fds)


@contextlib.contextmanager
def plan_file(first: bytes, rest: bytes) -> Iterator[int]:
    """Yield a memfd positioned at ``rest``: a plan with its environment is larger than a packet."""
    fd = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(first + rest)
        os.lseek(fd, len(first), os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _step_failed(answer: Mapping[str, Any]) -> StepFailed:
    return StepFailed(answer["step"], answer["errno"], answer["text"])
