"""System calls as the list of them says what each is: its request, its handler or ``prepare``, and its limits."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, unwrap
from typing import Any, Literal

from msgspec import Struct

from agentos_sdk.opcodes import Op

from .background import Background
from .caller import Caller
from .prepared import Prepared
from .wire.replies import encode_error
from .wire.request_body import Reader

SMALL_BODY_BYTES = 256 << 10  # bytes; default limit of a body
LARGE_BODY_BYTES = 1 << 20

Parse = Callable[[Caller, bytes], Awaitable[Any]]
Prepare = AbstractAsyncContextManager[Prepared] | Awaitable[Prepared]


class Syscall(Struct, frozen=True):
    """One system call: its opcode, the type of its request, and its ``prepare`` or, if it needs no right, its handler.

    ``prepare`` takes ``(caller, request)``, has no effects and gives a :class:`~agentos.kernel.prepared.Prepared`. A
    ``def`` returns it, and the call is answered while input is read. An ``async def`` returns it, too, or an async
    context manager yields it: then the call runs in a task, and what is held is released before the reply is sent.

    A ``def`` handler takes ``(caller, request)`` and answers while input is read; an ``async def`` takes ``(call,
    request)`` and runs in a task. Replies are values that :func:`agentos_sdk.encoding.codec.encode` takes, or encoded
    bytes.

    With ``request=None`` the request is the raw bytes, or what ``parse`` makes of them. A ``def`` handler of raw bytes
    counts the call itself.

    ``omittable`` are fields that EXPLAIN need not be given, with a value for each. ``encode`` makes the bytes of the
    reply. ``limit`` is the largest body in bytes; ``failure`` holds the keys of a failed reply besides ``success``,
    ``error`` and ``code``. Fields in ``verbatim`` are JSON that is passed on unchanged, as ``msgspec.Raw``.

    ``audit`` selects what the audit log records besides refusals: nothing, the outcome, or also the intent before
    anything is done. ``charge`` is called first, and not for EXPLAIN: it takes a token of a rate limit or refuses.

    ``in_order``: the handler, or ``act``, is an ``async def`` of the caller without a task. Other connections are
    served while it works, but its own connection answers nothing else until it has returned. ``takes_chunks``: the
    client may send it CHUNK frames while it is in flight. ``background`` runs requests that have ``async_`` set.

    ``deferred``: ``prepare`` is a ``def``, and its ``act`` returns a :data:`~agentos.kernel.drivers.Begin`. So the
    call waits without a task, which costs more than all that a short call does. If it is ``in_order``, too, ``act`` may
    also return the reply, and the call is begun in the order of its connection's requests.
    """

    op: Op
    request: type | None
    handler: Callable[[Any, Any], Any] | None = None
    prepare: Callable[[Caller, Any], Prepare] | None = None
    limit: int = SMALL_BODY_BYTES
    failure: Mapping[str, object] = {}
    verbatim: Collection[str] = ()
    parse: Parse | None = None
    encode: Callable[[Caller, Any], Awaitable[bytes]] | None = None
    omittable: Mapping[str, object] = {}
    audit: Literal["none", "outcome", "intent"] = "none"
    charge: Callable[[Caller], None] | None = None
    in_order: bool = False
    takes_chunks: bool = False
    background: Background | None = None
    deferred: bool = False

    @property
    def waits(self) -> bool:
        """Whether the call may wait and gets a task."""
        if self.prepare is not None:
            return iscoroutinefunction(self.prepare) or isasyncgenfunction(unwrap(self.prepare))
        return iscoroutinefunction(self.handler) and not self.in_order

    @asynccontextmanager
    async def preview(self, caller: Caller, request: Any) -> AsyncIterator[Prepared]:
        """What the request would do, which is held meanwhile; nothing is done. It raises what ``prepare`` raises."""
        assert self.prepare is not None, "the call needs rights"
        opened = self.prepare(caller, request)
        async with await opened if isinstance(opened, Awaitable) else opened as prepared:
            yield prepared

    def parser(self, reader: Reader) -> Parse:
        """What parses a body without blocking the event loop."""
        if self.request is not None:
            return partial(reader.read, request=self.request, verbatim=self.verbatim)
        return self.parse or _pass_on

    def encode_failure(self, error: BaseException) -> bytes:
        """The body of a failed reply."""
        return encode_error(error, self.op.name, self.failure)

    def fail(self, caller: Caller, error: BaseException) -> bytes:
        """Count a call that failed; returns the body of its reply."""
        caller.counts.fail(self.op, error)
        return self.encode_failure(error)


async def _pass_on(caller: Caller, body: bytes) -> bytes:
    return body
