"""Handlers of READ and WRITE."""

from binascii import a2b_base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakKeyDictionary

import trio
from attrs import field, frozen

from agentos.agents.life import home
from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.request_body import read_text
from agentos.kernel.table import Syscall
from agentos.services.files import io, resolve
from agentos.services.files.io import Part
from agentos.services.files.resolve import Found, Place
from agentos_sdk import codec
from agentos_sdk.calls.host import Read, Write, Written
from agentos_sdk.errors import BadRequest, PermissionDenied
from agentos_sdk.opcodes import Op

from .file_paths import PathResolver
from .json_text import base64_pieces, json_pieces

AT_ONCE = 4 << 10  # bytes of a body that are parsed in the event loop
LARGE = 1 << 20  # bytes of a file; at most two larger reads are held in memory at once
PIECE = 256 << 10  # characters of base64 decoded at a time, so that other threads run in between
WORKERS = 8  # threads; a file system that hangs delays only callers that wait for it
EACH = 4  # calls of one caller that are in flight at once
PLACES = "whose a path is"  # the rule's name in the audit log if no rule applies


@frozen(eq=False)
class Files:
    """Answers READ and WRITE. No reply has more than ``most`` bytes of a file."""

    whose: PathResolver
    most: int
    _own: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(WORKERS), init=False)
    _hosts: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(WORKERS), init=False)
    _strangers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2), init=False)
    _large: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2), init=False)
    _reading: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _turns: WeakKeyDictionary[Caller, trio.CapacityLimiter] = field(factory=WeakKeyDictionary, init=False)

    async def read(self, call: Call, request: Read) -> bytes:
        """Read a part of a file, or all of it."""
        async with self._turn(call.caller), self._judged(call, "read", request.path, resolve.find) as found:
            await call.caller.allowance.wait_for_bytes()  # a caller that doesn't read its replies gets no more of them
            wanted = found.size - request.offset
            if min(wanted, request.limit if request.limit is not None else wanted) <= LARGE:
                return await self._content(found, request)
            async with self._large:
                return await self._content(found, request)

    async def write(self, call: Call, body: bytes) -> Written:
        """Replace a file or append to it."""
        async with self._turn(call.caller):
            if len(body) <= AT_ONCE:
                request, data = understood(body)
            else:
                request, data = await trio.to_thread.run_sync(understood, body, limiter=self._reading)
            async with self._judged(call, "write", request.path, resolve.find_spot) as found:
                act = io.replace if request.mode == "write" else io.append
                await trio.to_thread.run_sync(act, found, data, limiter=self._workers(found.place))
        return Written(bytes_written=len(data))

    async def rights_to_read(self, caller: Caller, request: Read) -> Sequence[Right]:
        """The rights that READ would need; nothing is read."""
        return await self._rights(caller, "read", request.path, resolve.find)

    async def rights_to_write(self, caller: Caller, body: bytes) -> Sequence[Right]:
        """The rights that WRITE would need; nothing is written, and ``content`` may be omitted."""
        return await self._rights(caller, "write", named(body), resolve.find_spot)

    async def _rights(self, caller: Caller, action: str, path: str, find: Callable[[Place], Found]) -> Sequence[Right]:
        found = await self._found(caller, action, path, find)
        found.close()
        return (self._right(caller, action, found),)

    @asynccontextmanager
    async def _turn(self, caller: Caller) -> AsyncIterator[None]:
        """Limit the calls per caller: further calls of the same caller wait, other callers do not."""
        limiter = self._turns.get(caller)
        if limiter is None:
            limiter = self._turns[caller] = trio.CapacityLimiter(EACH)
        async with limiter:
            yield

    @asynccontextmanager
    async def _judged(self, call: Call, action: str, path: str, find: Callable[[Place], Found]) -> AsyncIterator[Found]:
        """Find the file and require permission. Only an allowed caller learns that the file doesn't exist."""
        try:
            found = await self._found(call.caller, action, path, find)
        except PermissionDenied as error:
            decision = Decision("deny", PLACES, str(error))
            call.caller.audit.note(call.caller.entry(action.upper(), path, decision, "outcome", error.code))
            raise
        try:
            await call.require(self._right(call.caller, action, found))
            found.require()
            yield found
        finally:
            found.close()

    def _right(self, caller: Caller, action: str, found: Found) -> Right:
        """The right to act on the real path. A symlink's target is never told, its existence only if permitted."""
        place = found.place
        if found.real == place.name:
            return Right(action, found.real, told=place.asked)
        known = caller.authorizer.decide(caller, Right(action, place.name)).effect == "allow"
        link = ", which is judged where its links lead" if known else ""
        return Right(action, found.real, told=f"{place.asked}{link}")

    async def _content(self, found: Found, request: Read) -> bytes:
        read = partial(io.read, found, request.offset, request.limit, self.most)
        part = await trio.to_thread.run_sync(read, limiter=self._workers(found.place))
        written = await content(part, request, self.most)
        pieces = [b'{"success":true,"content":"', *written, b'","size":%d}' % part.size]
        if sum(map(len, pieces)) > self.most:
            what = f"that part of {request.path} as JSON is more than the {self.most} bytes that a reply may have"
            raise BadRequest(f"limit: {what}: read less at a time")
        return b"".join(pieces)

    async def _found(self, caller: Caller, action: str, path: str, find: Callable[[Place], Found]) -> Found:
        try:
            place = self.whose.place(caller, path)
            limiter = self._workers(place)
            if not place.top and caller.authorizer.decide(caller, Right(action, place.name)).effect != "allow":
                limiter = self._strangers  # the path may lead to an allowed file, but mostly such requests are refused
            return await trio.to_thread.run_sync(find, place, limiter=limiter)
        except PermissionDenied as error:
            error.details.setdefault("rule", PLACES)
            raise

    def _workers(self, place: Place) -> trio.CapacityLimiter:
        return self._own if place.top else self._hosts


def syscalls(registry: Registry, base: str, max_payload: int) -> tuple[Syscall, ...]:
    """``base`` is the directory that the host's relative paths are resolved against."""
    service = Files(PathResolver(registry, base, home()), max_payload)
    return (
        Syscall(
            Op.READ,
            Read,
            service.read,
            failure={"content": "", "size": 0},
            audit="outcome",
            rights=service.rights_to_read,
        ),
        Syscall(
            Op.WRITE,
            None,
            service.write,
            limit=max_payload,
            failure={"bytes_written": 0},
            audit="intent",
            rights=service.rights_to_write,
        ),
    )


async def content(part: Part, request: Read, most: int) -> list[bytes]:
    """The data encoded for a JSON string in the reply; truncated above ``most`` bytes."""
    if request.encoding == "base64":
        return await base64_pieces(part.data)
    try:
        text = await json_pieces(part.data, "strict", whole=not part.cut, most=most)
    except UnicodeDecodeError as error:
        at = request.offset + error.start
        raise BadRequest(f"{request.path}: not UTF-8 at byte {at}: read it with encoding base64") from None
    if part.data and not any(text):
        raise BadRequest("limit: the character there has more bytes: read at least 4 at a time")
    return text


def named(body: bytes) -> str:
    """The path of a WRITE that EXPLAIN asks about."""
    try:
        fields = codec.parse(body)
        return codec.decode(Write, {"content": "", **fields} if isinstance(fields, dict) else fields).path
    except codec.Invalid as error:
        raise BadRequest(str(error)) from None


def understood(body: bytes) -> tuple[Write, bytes]:
    """The request and the decoded bytes to write."""
    request = read_text(Write, body)
    text = request.content
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    if request.encoding == "utf-8":
        return request, b"".join(piece.encode() for piece in pieces)
    try:
        data = b"".join(a2b_base64(piece, strict_mode=True) for piece in pieces)
        if len(data) == len(text) // 4 * 3 - text.count("=", -2):  # otherwise there is padding in the middle
            return request, data
    except ValueError:
        pass
    raise BadRequest("content: expected base64, with padding and without line breaks")
