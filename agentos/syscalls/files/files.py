"""Handlers of READ and WRITE."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from functools import cache, partial
from typing import Literal
from weakref import WeakKeyDictionary

from attrs import field, frozen
from msgspec import Struct
from msgspec.structs import replace

from agentos.agents.inherit import effective
from agentos.agents.life.present import Life
from agentos.agents.registry import Registry
from agentos.agents.workspaces.view import View
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared, Refused
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.request_body import read_text
from agentos.permissions.approvals.text import describe_append, describe_right, describe_write
from agentos.services.files import io, present, resolve
from agentos.services.files.resolve import Part, PathRequest, ResolvedPath
from agentos.syscalls.json_text import PIECE_CHARS, base64_pieces, decode_base64, json_pieces
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.calls.host import Read, Write, Written
from agentos_sdk.errors import BadRequest, PermissionDenied, Unavailable
from agentos_sdk.opcodes import Op

MAX_INLINE_BYTES = 4 << 10  # bytes of a body that are parsed in the event loop
LARGE_FILE_BYTES = 1 << 20  # bytes of a file; at most two larger reads are held in memory at once
WORKER_THREADS = 8  # threads; a file system that hangs delays only callers that wait for it
MAX_CALLS_PER_CALLER = 4  # calls of one caller that are in flight at once
PATH_RULE = "paths of this kind of caller"  # in the audit log if no rule applies


@frozen
class PathResolver:
    """Resolves paths, without file access. ``host`` is the operator's view of the host."""

    registry: Registry
    host: View
    guest: View = field(init=False)

    @guest.default
    def _view_of_guests(self) -> View:
        return replace(self.host, single_link=True)

    def path_request(self, caller: Caller, path: str) -> PathRequest:
        """A caller's path; ``PermissionDenied`` if callers of its kind can't use it, ``Unavailable`` after its end."""
        if caller.kind != "agent":
            return (self.host if caller.kind == "operator" else self.guest).request(path)
        agent = self.registry.find(caller.id, None)
        if agent.life.view is not None:
            return agent.life.view.request(path)
        if agent.spec.jailed:  # without the jail's uid and gid files would be accessed as the kernel
            raise Unavailable(f"{agent.name} has ended, and its files with it")
        return replace(self.guest, max_size=effective(agent.spec).file_size).request(path)

    def writes_of(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """To be entered around a write: an agent's wait while its files are copied."""
        agent = self.registry.get(caller.id) if caller.kind == "agent" else None
        return agent.life.writes if agent is not None and isinstance(agent.life, Life) else nullcontext()


@frozen(eq=False)
class Files:
    """Answers READ and WRITE. No reply has more than ``most`` bytes of a file."""

    paths: PathResolver
    most: int
    _own: Limiter = field(factory=lambda: Limiter(WORKER_THREADS), init=False)
    _hosts: Limiter = field(factory=lambda: Limiter(WORKER_THREADS), init=False)
    _strangers: Limiter = field(factory=lambda: Limiter(2), init=False)
    _large: Limiter = field(factory=lambda: Limiter(2), init=False)
    _turns: WeakKeyDictionary[Caller, Limiter] = field(
        factory=WeakKeyDictionary, init=False
    )  # further calls of a caller wait

    def syscalls(self) -> tuple[Syscall, ...]:
        """READ and WRITE."""
        return (
            Syscall(
                Op.READ,
                Read,
                prepare=self.prepare_read,
                failure={"content": "", "size": 0},
                audit="outcome",
            ),
            Syscall(
                Op.WRITE,
                None,
                parse=self.parse_write,
                prepare=self.prepare_write,
                limit=self.most,
                failure={"bytes_written": 0},
                omittable={"content": ""},
                audit="intent",
            ),
        )

    @asynccontextmanager
    async def prepare_read(self, caller: Caller, request: Read) -> AsyncIterator[Prepared]:
        """Read a part of a file, or all of it."""
        async with self._turns.get(caller) or self._turns.setdefault(caller, Limiter(MAX_CALLS_PER_CALLER)):
            file, right = await self._resolve(caller, request)

            async def act(call: Call) -> bytes:
                if file.error is not None:
                    raise file.error
                # A caller that doesn't read its replies gets no more of them.
                await caller.allowance.wait_for_reply_room()
                if file.part is not None:
                    return await encode_content(file.part, request, self.most)
                wanted = file.size - request.offset
                large = min(wanted, request.limit if request.limit is not None else wanted) > LARGE_FILE_BYTES
                async with self._large if large else nullcontext():
                    threads = self._workers(file.request)
                    part = await run_in_thread(io.read, file, request.offset, request.limit, self.most, limiter=threads)
                    return await encode_content(part, request, self.most)

            with closing(file):
                shown = partial(describe_right, right)  # which part of it is read, and in which form, is left out
                yield Prepared((right,), act, identity=partial(identify_for_reading, file), shown=shown)

    async def parse_write(self, caller: Caller, body: bytes) -> "WriteRequest":
        """Parse the body. A caller's large bodies are parsed one after the other."""
        if len(body) <= MAX_INLINE_BYTES:
            return parse_write(body)
        return await caller.table.reader.run(caller, parse_write, body)

    @asynccontextmanager
    async def prepare_write(self, caller: Caller, request: "WriteRequest") -> AsyncIterator[Prepared]:
        """Replace a file or append to it."""
        async with self._turns.get(caller) or self._turns.setdefault(caller, Limiter(MAX_CALLS_PER_CALLER)):
            file, right = await self._resolve(caller, request)

            async def act(call: Call) -> Written:
                write = io.replace if request.mode == "write" else io.append
                async with self.paths.writes_of(caller):
                    await run_in_thread(write, file, request.data, limiter=self._workers(file.request))
                return Written(bytes_written=len(request.data))

            @cache
            def look() -> present.Present:  # once: what is shown is what the approval is bound to
                return present.look_at(file)

            with closing(file):
                yield Prepared(
                    (right,),
                    act,
                    shown=lambda: describe_change(file.real, request, look()),
                    identity=lambda: look().identity,
                )

    async def _resolve(self, caller: Caller, request: "Read | WriteRequest") -> tuple[ResolvedPath, Right]:
        """Resolve a path: the file, and the right to act on its real path. A small part to be read is read at once.

        Only a caller that may read it learns, when it acts, that the file is missing. A symlink's target is never
        revealed, its existence only if the caller may act on what has the link's name.
        """
        action: Literal["read", "write"] = "read" if isinstance(request, Read) else "write"
        try:
            path_request = self.paths.path_request(caller, request.path)
            right = Right(action, path_request.name, shown_as=path_request.given)
            allowed = caller.authorizer.decide(caller, right).effect == "allow"
            # A host's path that isn't allowed may lead to an allowed file, but mostly such requests are refused.
            threads = self._own if path_request.top else self._hosts if allowed else self._strangers
            if isinstance(request, Read):
                read = partial(io.read_early, offset=request.offset, limit=request.limit, max_bytes=self.most)
                early = read if allowed else None
                file = await run_in_thread(resolve.resolve_file, path_request, early, limiter=threads)
            else:
                file = await run_in_thread(resolve.resolve_for_writing, path_request, limiter=threads)
            if file.real != path_request.name:
                link = ", which is judged where its links lead" if allowed else ""
                right = Right(action, file.real, shown_as=f"{path_request.given}{link}")
            return file, right
        except PermissionDenied as error:
            raise Refused(error, request.path, PATH_RULE) from None

    def _workers(self, path_request: PathRequest) -> Limiter:
        return self._own if path_request.top else self._hosts


async def encode_content(part: Part, request: Read, most: int) -> bytes:
    """The reply; ``BadRequest`` if it is more than ``most`` bytes, or the data isn't text and is to be."""
    if request.encoding == "base64":
        encoded = await base64_pieces(part.data)
    else:
        try:
            encoded = await json_pieces(part.data, "strict", whole=not part.cut, most=most)
        except UnicodeDecodeError as error:
            at = request.offset + error.start
            raise BadRequest(f"{request.path}: not UTF-8 at byte {at}: read it with encoding base64") from None
        if part.data and not any(encoded):
            raise BadRequest("limit: the character there has more bytes: read at least 4 at a time")
    pieces = [b'{"success":true,"content":"', *encoded, b'","size":%d}' % part.size]
    if sum(map(len, pieces)) > most:
        what = f"that part of {request.path} as JSON is more than the {most} bytes that a reply may have"
        raise BadRequest(f"limit: {what}: read less at a time")
    return b"".join(pieces)


def identify_for_reading(file: ResolvedPath) -> bytes:
    """The device and inode of the file; of a missing one why it can't be read."""
    return present.identify(file.fd) or str(file.error).encode(errors="replace")


def describe_change(path: str, request: "WriteRequest", found: present.Present) -> str:
    """What a person sees of a WRITE: the change of the present file."""
    if request.mode == "append" and (found.content is not None or found.problem):
        return describe_append(path, found.size, request.data, found.problem)
    return describe_write(path, found.content, request.data, found.problem)


class WriteRequest(Struct, frozen=True):
    """A WRITE with its content as bytes."""

    path: str
    mode: str
    data: bytes


def parse_write(body: bytes) -> WriteRequest:
    """Parse a body and decode its content."""
    request = read_text(Write, body)
    text = request.content
    if request.encoding == "base64":
        return WriteRequest(request.path, request.mode, decode_base64(text, "content"))
    pieces = (text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS))
    return WriteRequest(request.path, request.mode, b"".join(piece.encode() for piece in pieces))
