"""Async iterators over streamed replies: a followed log, the model's answer, a command's output, HTTP's response."""

import weakref
from binascii import a2b_base64
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from agentos_sdk.calls import agents, events, host, http, think
from agentos_sdk.calls.operator import archives, permissions
from agentos_sdk.calls.request import Request
from agentos_sdk.encoding import codec
from agentos_sdk.opcodes import Op

from .question import question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from agentos_sdk.client import Kernel, Pending

Piece = TypeVar("Piece")


class Stream(Generic[Piece]):
    """A streamed request, sent when the first piece is requested: an async iterator and an async context manager.

    Leaving ``async with`` cancels the request if it is unanswered. A loop without ``async with`` that is left early
    doesn't cancel: that happens when the stream is garbage collected, by :meth:`aclose`, or when the connection closes.
    ``part`` is the class of a chunk, ``kept`` the attribute that becomes the reply.
    """

    request: type[Request[Any]]
    part: Any = None
    kept = ""
    _max_unread: int | None = None  # bytes; None: the client's default

    def __init__(self, kernel: "Kernel", fields: "Mapping[str, Any]") -> None:
        self._kernel = kernel
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._started: tuple[int, Pending] | None = None
        self._is_done = False

    @property
    def op(self) -> Op:
        return self.request.op

    async def __aenter__(self) -> "Self":
        await self._begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the request, if it isn't answered yet."""
        self._is_done = True
        if self._started is not None:
            self._finalizer.detach()
            self._kernel._end(*self._started)

    def __aiter__(self) -> "Self":
        return self

    async def __anext__(self) -> Piece:
        if self._is_done:
            raise StopAsyncIteration
        pending = await self._begin()
        while True:
            if (chunk := pending.take()) is not None:
                return self._piece(chunk)
            if pending.reply is not None:
                self._is_done = True
                return self._last(pending.reply)
            await self._kernel._change(pending)

    async def _begin(self) -> "Pending":
        if self._started is None:
            number, pending = self._started = await self._kernel._begin(
                self.op, await self._body(), deque(), self._max_unread
            )
            end = partial(self._kernel._end, number, pending)
            self._finalizer = weakref.finalize(self, _schedule, trio.lowlevel.current_trio_token(), end)
            self._finalizer.atexit = False
        return self._started[1]

    async def _body(self) -> bytes:
        return codec.encode(self._fields)

    def _piece(self, chunk: bytes) -> Piece:
        piece: Piece = self._kernel._decode(self.part, chunk)
        return piece

    def _last(self, reply: bytes) -> Piece:
        """The reply as the last piece; raises ``StopAsyncIteration`` if it holds no piece."""
        setattr(self, self.kept, self._kernel._reply(self.request, reply))
        raise StopAsyncIteration


def _schedule(token: trio.lowlevel.TrioToken, end: "partial[None]") -> None:
    """Call ``end`` in Trio's thread: garbage collection can run in any thread, at any time."""
    with suppress(trio.RunFinishedError):  # Trio has ended, and so has the connection
        token.run_sync_soon(end)


class Pages(Stream[agents.LogsReply]):
    """The pages of a followed log."""

    request = agents.Logs

    def _piece(self, chunk: bytes) -> agents.LogsReply:
        return self._kernel._reply(agents.Logs, chunk)

    def _last(self, reply: bytes) -> agents.LogsReply:
        page = self._piece(reply)
        if not page.lines and not page.missed:
            raise StopAsyncIteration
        return page


class ApprovalLists(Stream["Sequence[permissions.Pending]"]):
    """The calls that wait for a person's approval, whenever they have changed."""

    request = permissions.Approvals

    def _piece(self, chunk: bytes) -> "Sequence[permissions.Pending]":
        return self._kernel._reply(permissions.Approvals, chunk).pending

    def _last(self, reply: bytes) -> "Sequence[permissions.Pending]":
        return self._piece(reply)


class Events(Stream[Any]):
    """Events, one after the other. ``missed`` counts those that the kernel has dropped before they could be read.

    ``boot_changed``: ``since`` is of an earlier run of the kernel; ``cut_off``: that run was killed, so that its last
    events may be lost, uncounted. Both are known with the first event.
    """

    request, part, kept = events.Subscribe, events.EventFrame, "subscribed"
    missed = 0
    boot_changed = cut_off = False

    def __init__(self, kernel: "Kernel", fields: "Mapping[str, Any]") -> None:
        super().__init__(kernel, fields)
        self._unread: deque[events.Event] = deque()

    async def __anext__(self) -> events.Event:
        while not self._unread:
            page: events.EventFrame = await super().__anext__()
            self.missed += page.missed
            self.boot_changed |= page.boot_changed
            self.cut_off |= page.cut_off
            self._unread.extend(page.events)
        return self._unread.popleft()


class Thoughts(Stream[str]):
    """The model's answer, piece by piece. Once it is complete, ``thought`` is the whole reply."""

    request, kept = think.Think, "thought"
    thought: think.Thought | None = None

    async def _body(self) -> bytes:
        return codec.encode(await question_in_thread(self._fields))

    def _piece(self, chunk: bytes) -> str:
        return self._kernel._decode(think.Delta, chunk).delta


class Outputs(Stream[host.Output]):
    """The output of a command as it is written. Once the command has ended, ``executed`` is the reply."""

    request, part, kept = host.Exec, host.Output, "executed"
    executed: host.Executed | None = None


class Parts(Stream[http.HTTPPart]):
    """An HTTP response in parts: its head, then its body. Once it is complete, ``response`` is the reply."""

    request, part, kept = http.HTTP, http.HTTPPart, "response"
    response: http.HTTPResponse | None = None


class Archive(Stream[bytes]):
    """An agent's archive in pieces. Once it is complete, ``exported`` is the reply."""

    request, kept = archives.Export, "exported"
    exported: archives.Exported | None = None

    def _piece(self, chunk: bytes) -> bytes:
        return a2b_base64(self._kernel._decode(archives.ArchivePart, chunk).data)


async def question_in_thread(arguments: "Mapping[str, Any]") -> "Mapping[str, Any]":
    """The fields of THINK. Image files are read and encoded as base64 in a thread."""
    if arguments.get("image") is None and arguments.get("images") is None:
        return question(arguments)
    return await trio.to_thread.run_sync(question, arguments, abandon_on_cancel=True)
