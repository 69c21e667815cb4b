"""READ and WRITE."""

from binascii import a2b_base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakKeyDictionary

import trio
from attrs import field, frozen

from agentos.agents.life import home
from agentos.agents.registry import Registry
from agentos.kernel.body import read_text
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.table import Syscall
from agentos.services import files, finding
from agentos.services.files import Part
from agentos.services.finding import Found, Place
from agentos_sdk import codec
from agentos_sdk.calls.host import Read, Write, Written
from agentos_sdk.errors import BadRequest, PermissionDenied
from agentos_sdk.opcodes import Op

from .text import base64_pieces, json_pieces
from .whose import Whose

AT_ONCE = 4 << 10  # bytes of a body that are read in the event loop
LARGE = 1 << 20  # bytes of a file, of which few are held at once
PIECE = 256 << 10  # characters of base64 that are decoded at a time, so that other threads have their turn
WORKERS = 8  # threads; a file system that doesn't answer holds up nobody but whoever waits for it
EACH = 4  # calls of one caller's that are under way at once
PLACES = "whose a path is"  # instead of a rule, where none would help


@frozen(eq=False)
class Files:
    """Answers READ and WRITE. No reply has more than ``most`` bytes of a file."""

    whose: Whose
    most: int
    _own: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(WORKERS), init=False)
    _hosts: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(WORKERS), init=False)
    _strangers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2), init=False)
    _large: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2), init=False)
    _reading: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _turns: WeakKeyDictionary[Caller, trio.CapacityLimiter] = field(factory=WeakKeyDictionary, init=False)

    async def read(self, call: Call, request: Read) -> bytes:
        """A part of a file, or all of it."""
        async with self._turn(call.caller), self._judged(call, "read", request.path, finding.find) as found:
            await call.caller.allowance.wait_for_bytes()  # who doesn't read its replies gets no more of them
            wanted = found.size - request.offset
            if min(wanted, request.limit if request.limit is not None else wanted) <= LARGE:
                return await self._content(found, request)
            async with self._large:
                return await self._content(found, request)

    async def write(self, call: Call, body: bytes) -> Written:
        """A file replaced, or something appended to one."""
        async with self._turn(call.caller):
            if len(body) <= AT_ONCE:
                request, data = understood(body)
            else:
                request, data = await trio.to_thread.run_sync(understood, body, limiter=self._reading)
            async with self._judged(call, "write", request.path, finding.find_spot) as found:
                act = files.replace if request.mode == "write" else files.append
                await trio.to_thread.run_sync(act, found, data, limiter=self._workers(found.place))
        return Written(bytes_written=len(data))

    async def rights_to_read(self, caller: Caller, request: Read) -> Sequence[Right]:
        """What READ would have to be allowed; nothing is read."""
        return await self._rights(caller, "read", request.path, finding.find)

    async def rights_to_write(self, caller: Caller, body: bytes) -> Sequence[Right]:
        """What WRITE would have to be allowed; nothing is written, so that ``content`` may be left out."""
        return await self._rights(caller, "write", named(body), finding.find_spot)

    async def _rights(self, caller: Caller, action: str, path: str, find: Callable[[Place], Found]) -> Sequence[Right]:
        found = await self._found(caller, action, path, find)
        found.close()
        return (self._right(caller, action, found),)

    @asynccontextmanager
    async def _turn(self, caller: Caller) -> AsyncIterator[None]:
        """Who asks much waits behind itself, and not others behind it."""
        limiter = self._turns.get(caller)
        if limiter is None:
            limiter = self._turns[caller] = trio.CapacityLimiter(EACH)
        async with limiter:
            yield

    @asynccontextmanager
    async def _judged(self, call: Call, action: str, path: str, find: Callable[[Place], Found]) -> AsyncIterator[Found]:
        """What is there, if the caller may do this to it; only then it hears that there is nothing."""
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
        """To do this to what was found. Where a link leads isn't told, nor that it is one to who may not know it."""
        place = found.place
        if found.real == place.name:
            return Right(action, found.real, told=place.asked)
        known = caller.authorizer.decide(caller, Right(action, place.name)).effect == "allow"
        link = ", which is judged where its links lead" if known else ""
        return Right(action, found.real, told=f"{place.asked}{link}")

    async def _content(self, found: Found, request: Read) -> bytes:
        read = partial(files.read, found, request.offset, request.limit, self.most)
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
                limiter = self._strangers  # it may lead to what is allowed, but mostly somebody just tries
            return await trio.to_thread.run_sync(find, place, limiter=limiter)
        except PermissionDenied as error:
            error.details.setdefault("rule", PLACES)
            raise

    def _workers(self, place: Place) -> trio.CapacityLimiter:
        return self._own if place.top else self._hosts


def syscalls(registry: Registry, base: str, max_payload: int) -> tuple[Syscall, ...]:
    """``base`` is the directory where the host's relative paths begin."""
    service = Files(Whose(registry, base, home()), max_payload)
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
    """What was read, as it stands between the quotes of a reply; more than ``most`` bytes of it are not all of it."""
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
    """The path of a WRITE that is asked about."""
    try:
        fields = codec.parse(body)
        return codec.decode(Write, {"content": "", **fields} if isinstance(fields, dict) else fields).path
    except codec.Invalid as error:
        raise BadRequest(str(error)) from None


def understood(body: bytes) -> tuple[Write, bytes]:
    """The request, and the bytes that it wants written."""
    request = read_text(Write, body)
    text = request.content
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    if request.encoding == "utf-8":
        return request, b"".join(piece.encode() for piece in pieces)
    try:
        data = b"".join(a2b_base64(piece, strict_mode=True) for piece in pieces)
        if len(data) == len(text) // 4 * 3 - text.count("=", -2):  # otherwise it has an end in the middle
            return request, data
    except ValueError:
        pass
    raise BadRequest("content: expected base64, with padding and without line breaks")
