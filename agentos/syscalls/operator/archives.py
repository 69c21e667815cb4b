"""Handlers of EXPORT and IMPORT: an agent as a tar archive, and an agent of such an archive.

An archive holds no rights: permissions, the network, budgets, environment and host paths are left out, and an import
takes only the fields of a declaration that :data:`FIELDS` lists. What is imported runs in a jail, with what an agent
gets by default. docs/decisions/0109.
"""

import contextlib
import errno
import math
import os
import stat
import tempfile
from binascii import b2a_base64
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any, Final

import attrs
import msgspec
from attrs import frozen
from msgspec.structs import replace

from agentos import __version__
from agentos.access.foreign_messages import make_foreign
from agentos.agents.jail.jail import lineage
from agentos.agents.jail.layout import limits as limits_of
from agentos.agents.jail.root_access import directory_of
from agentos.agents.life.still import hold_still
from agentos.agents.registry import Agent, StartError
from agentos.agents.spec import AgentSpec, check_name
from agentos.agents.workspaces import script_copies
from agentos.images.errors import BadStore, NoImage
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.request_body import read_chunk
from agentos.private_files import display_path
from agentos.sandbox.files import openat2
from agentos.services.archives import archive
from agentos.services.archives.imports import Imports, Staged
from agentos.services.archives.json_parts import (
    Manifest,
    NeededImage,
    UnreadMessage,
    encode_messages,
    read_keys,
    read_manifest,
    read_messages,
)
from agentos.services.archives.tar import MAX_BYTES, BadArchive
from agentos.services.files.foreign_files import read_regular
from agentos.services.mail.mailbox import Message
from agentos.services.mail.mailboxes import Mailboxes
from agentos.services.snapshots import beneath
from agentos.services.snapshots.snapshots import Snapshots
from agentos.services.state.copies import KeptKey
from agentos.syscalls.agents.spawn import Spawning
from agentos.syscalls.json_text import decode_base64
from agentos.threads import run_in_thread
from agentos_sdk.calls import agents
from agentos_sdk.calls.operator import archives as calls
from agentos_sdk.calls.state import is_key
from agentos_sdk.encoding import codec
from agentos_sdk.errors import AlreadyExists, BadRequest, NotFound, Unavailable
from agentos_sdk.opcodes import Op
from agentos_sdk.values import HostIds, Limits

from .snapshots import account_of

PIECE: Final = 128 << 10  # bytes of an archive in one CHUNK frame
FIELDS: Final = (
    *("command", "args", "cwd", "ready", "restart", "max_restarts", "restart_window", "shutdown", "backoff"),
    *("isolation", "limits"),
)
LEFT_OUT: Final = "permissions, budgets, network and remembered answers"
IN_JAIL: Final = ("/workspace/", "/usr/", "/bin/")  # of programs by their path


@frozen
class Archives:
    """Answers them."""

    spawning: Spawning
    snapshots: Snapshots
    mail: Mailboxes
    imports: Imports

    # -- EXPORT --------------------------------------------------------------------------------------------------------

    async def prepare_export(self, caller: Caller, request: calls.Export) -> Prepared:
        agent = self.spawning.callers.registry.find(None, request.name)

        async def act(call: Call) -> calls.Exported:
            call.require_stream("stream")
            if not request.stream:
                raise BadRequest("stream: an archive comes in CHUNK frames: expected true")
            with self._hold_archive() as out:
                async with hold_still(agent):
                    keys = await self.imports.state.copy(account_of(agent, agent.name))
                    unread = self._list_unread(agent)
                    left_out = await run_in_thread(self._write, out, agent, request.include, keys, unread)
                size = await run_in_thread(out.seek, 0, os.SEEK_END)
                await run_in_thread(out.seek, 0)
                while data := await run_in_thread(out.read, PIECE):
                    part = calls.ArchivePart(data=b2a_base64(data, newline=False).decode())
                    await call.send(codec.encode(part))
            call.remark = f"{agent.name}: {size} bytes"
            return calls.Exported(size=size, left_out=left_out)

        return Prepared((Right("export", agent=agent.id),), act, about=request.name)

    @contextlib.contextmanager
    def _hold_archive(self) -> Iterator[IO[bytes]]:
        """A file for an archive that is sent, without a name."""
        try:
            with tempfile.TemporaryFile(dir=self.imports.directory) as out:
                yield out
        except OSError as error:
            place = display_path(self.imports.directory)
            raise Unavailable(f"the archive can't be kept in {place} until it is sent: {error.strerror}") from None

    def _write(
        self,
        out: IO[bytes],
        agent: Agent,
        include: Sequence[str],
        keys: Sequence[KeptKey],
        unread: Sequence[Message],
    ) -> Sequence[str]:
        """Write the archive; returns what it doesn't have. Blocks."""
        spec, writer = agent.spec, archive.Writer(out)
        left_out = [LEFT_OUT, *(f"env {name}" for name in spec.env), *(["user root"] if spec.user else [])]
        try:
            declared = describe(spec) if "agent" in include else None
            image = self._find_image(agent) if declared is not None else None
            script = read_script(spec) if declared is not None and spec.script is not None else None
            manifest = Manifest(1, __version__, spec.name, declared, left_out, image)
            writer.add(archive.MANIFEST, msgspec.json.encode(manifest))
            if "state" in include:
                writer.add(archive.STATE, msgspec.json.encode(keys))
            if "mailbox" in include:
                writer.add(archive.MAILBOX, encode_messages(unread))
            if script is not None and spec.script is not None:
                writer.add(f"{archive.PROGRAM}/{os.path.basename(spec.script)}", script)
            if "workspace" in include and spec.jailed:
                with self._open_workspace(agent) as top:
                    if top is not None:
                        writer.add_tree(top)
            if declared is not None:  # IMPORT makes such an agent of it
                check_size(spec, writer)
            writer.finish()
        except (archive.TooLarge, BadArchive) as error:
            raise Unavailable(f"{error}: choose other parts by include") from None
        except OSError as error:
            raise Unavailable(f"{error.filename or spec.name}: {error.strerror or error}") from None
        if writer.skipped:
            left_out.append(f"{writer.skipped} sockets, FIFOs, devices and protected names")
        return left_out

    def _find_image(self, agent: Agent) -> NeededImage | None:
        """The image that its program runs in, or would run in now. Raises ``Unavailable``. Blocks."""
        name, jail = agent.spec.image, agent.life.jail
        if name is None:
            return None
        try:
            image = jail.parts.image if jail is not None else None
            return NeededImage(name, (image or self.spawning.supervision.deps.jails.images.find(name)).digest)
        except (NoImage, BadStore) as error:
            raise Unavailable(f"{agent.name}: image: {error}") from None

    def _list_unread(self, agent: Agent) -> Sequence[Message]:
        try:
            box = self.mail.by_name(agent.name)
        except NotFound:  # it has ended
            return []
        return sorted((*(lease.message for lease in box.leases.values()), *box.messages), key=lambda one: one.id)

    @contextlib.contextmanager
    def _open_workspace(self, agent: Agent) -> Iterator[int | None]:
        """The directory of its workspace; None for one in memory that is gone. Blocks."""
        spec, jail = agent.spec, agent.life.jail
        if jail is not None:
            with directory_of(jail.sandbox, "workspace", agent.name) as top:
                yield top
            return
        kept = self.imports.directory / "workspaces" / lineage(agent)
        path = str(kept.resolve()) if spec.workspace == "keep" and kept.is_dir() else spec.workspace
        if spec.workspace == "tmp":
            yield None
        elif path == "keep" or spec.workspace_mode == "overlay":
            raise Unavailable(f"{agent.name} doesn't run: start it, or leave workspace out of include")
        else:
            with beneath.open_top(path) as top:
                yield top

    # -- IMPORT --------------------------------------------------------------------------------------------------------

    async def prepare_import(self, caller: Caller, request: calls.Import) -> Prepared:
        if request.as_ is not None:
            check_name(request.as_, "as")
        real, rights = "", [Right("import")]
        if request.path is not None:
            real = await run_in_thread(os.path.realpath, os.path.join(self.spawning.base, request.path))
            rights.append(Right("read", real, shown_as=request.path))

        async def act(call: Call) -> calls.Imported:
            shown = request.path or "the archive"
            try:
                with await self._open(call, real) as file:
                    return await self._import(call, request, file)
            except BadArchive as error:
                raise BadRequest(f"{f'path: {shown}' if real else shown}: {error}") from None
            except FileExistsError:
                raise AlreadyExists("as: a former agent of that name has left files: choose another") from None
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    shown = display_path(self.imports.directory)
                raise Unavailable(f"{error.filename or shown}: {error.strerror or error}") from None

        return Prepared(rights, act, about=request.path or "an archive in CHUNK frames")

    def _take_image(self, needed: NeededImage) -> str:
        """The name that an image has here. Raises ``NotFound``, ``Unavailable``. Blocks."""
        try:
            return self.spawning.supervision.deps.jails.images.find_digest(needed.name, needed.digest).name
        except NoImage as error:
            raise NotFound(f"image: {error}") from None
        except BadStore as error:
            raise Unavailable(f"image: {error}") from None

    async def _open(self, call: Call, path: str) -> IO[bytes]:
        """The file of an archive, or one with what the client sends."""
        if path:
            call.refuse_input()
            return await run_in_thread(open_archive, path)
        call.require_stream("path")
        assert call.input is not None, "the call takes CHUNK frames"
        with contextlib.ExitStack() as undo:
            out = undo.enter_context(tempfile.TemporaryFile(dir=self.imports.directory))
            size, part = 0, calls.ArchiveInput()
            while not part.eof:
                part = read_chunk(calls.ArchiveInput, await call.input.take())
                size += len(part.data)
                if size > 3 * MAX_BYTES:
                    raise BadRequest(f"CHUNK: data: more than {2 * MAX_BYTES} bytes of an archive")
                await run_in_thread(out.write, decode_base64(part.data, "CHUNK: data"))
            await run_in_thread(out.seek, 0)
            undo.pop_all()
            return out

    async def _import(self, call: Call, request: calls.Import, file: IO[bytes]) -> calls.Imported:
        manifest = await run_in_thread(lambda: read_manifest(archive.read_manifest(file)))
        name = request.as_ or manifest.name
        check_name(name, "as")
        wanted: Any = read_declaration(manifest, name)
        if manifest.image is not None:
            wanted = attrs.evolve(wanted, image=await run_in_thread(self._take_image, manifest.image))
        jails = self.spawning.supervision.deps.jails
        async with self._hold(name), self.imports.stage() as staged:
            owner = await jails.take_identity(name)
            found = await run_in_thread(unpack, staged, file, owner)
            keys = await run_in_thread(read_keys, found.parts.get(archive.STATE, b"[]"), is_key)
            messages = await run_in_thread(read_messages, found.parts.get(archive.MAILBOX, b"[]"))
            spec = await run_in_thread(self._build, call.caller, wanted, found)
            try:
                check_size(spec, found)
                async with staged.keep(name, keys):
                    agent = await self._start(call.caller, spec, messages)
            except BaseException:
                script_copies.discard(spec)
                raise
        call.remark = f"{name}, from {request.path or 'CHUNK frames'}"
        one = calls.ImportedAgent(id=agent.id, name=name, keys=len(keys), messages=len(messages), files=found.files)
        return calls.Imported(imported=[one], left_out=manifest.left_out)

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[None]:
        """A name that nothing is left under; until the import has ended or is undone no other agent gets it."""
        registry = self.spawning.callers.registry
        if self.spawning.is_taken(name):
            raise AlreadyExists(f"as: {name!r} is taken: choose another name")
        registry.held.add(name)
        try:
            if await self.snapshots.is_used(name, name):
                raise AlreadyExists(f"as: {name} has changes or keys of a former agent: choose another name")
            kept = await run_in_thread(self.spawning.supervision.deps.jails.workspaces.list_kept)
            if name in kept:
                raise AlreadyExists(f"as: {name} has files of a former agent: choose another name")
            yield
        finally:
            registry.held.remove(name)

    def _build(self, caller: Caller, wanted: agents.Spawn, found: archive.Unpacked) -> AgentSpec:
        """The spec, with a copy of the script for this agent alone. Blocks."""
        script = None
        if found.script is not None:
            script = script_copies.write(*found.script, self.spawning.supervision.deps.run.directory)
        try:
            made: Any = attrs.evolve(wanted, script=script)  # type: ignore[misc] # a record is an attrs class
            spec = self.spawning.build(caller, None, made, None, Limits())
        except BaseException:
            if script is not None:
                script_copies.remove(script)
            raise
        return replace(spec, copied=script is not None)

    async def _start(self, caller: Caller, spec: AgentSpec, messages: Sequence[UnreadMessage]) -> Agent:
        held = self.spawning.callers.registry.held

        def deliver(agent: Agent) -> None:
            held.add(spec.name)
            box = self.mail.by_id(agent.id)
            for one in messages:
                box.put(make_foreign(one.from_name, bytes(one.message), one.sent_at, next(self.mail.numbers)))

        held.remove(spec.name)  # for the agent that is added before anything else can be
        try:
            return await self.spawning.supervision.spawn(spec, caller, None, begin=deliver)
        except StartError as error:
            raise error.error(f"{spec.name} did not start: {error}", stderr=error.stderr) from None
        finally:
            held.add(spec.name)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.EXPORT, calls.Export, prepare=self.prepare_export, audit="intent"),
            Syscall(Op.IMPORT, calls.Import, prepare=self.prepare_import, audit="intent", takes_chunks=True),
        )


def describe(spec: AgentSpec) -> dict[str, Any]:
    """The fields of a declaration that an archive has. Raises ``BadRequest`` where they aren't all of its program."""
    if not spec.jailed:
        raise BadRequest("include: an agent without a jail isn't exported: name state and mailbox alone")
    if spec.code is not None or (spec.command and spec.image is None and not is_portable(spec.command[0])):
        raise BadRequest("include: its program isn't one script, but files of this host: leave agent out")
    found: dict[str, Any] = {name: getattr(spec, name) for name in FIELDS if getattr(spec, name) is not None}
    for name, value in found.items():
        if attrs.has(type(value)):  # with units as a declaration has them
            fields: Any = codec.parse(codec.encode(value))
            found[name] = {key: one for key, one in fields.items() if one is not None}
    return {name: value for name, value in found.items() if value != math.inf}  # which a declaration of SPAWN can't say


def is_portable(program: str) -> bool:
    """Whether a program is one of the jail's own: no path of the host's."""
    return "/" not in program or (program.startswith(IN_JAIL) and ".." not in program)


def read_declaration(manifest: Manifest, name: str) -> agents.Spawn:
    """The SPAWN that an archive stands for. Raises :class:`BadArchive`."""
    declared = manifest.agent
    if declared is None:
        raise BadArchive(f"{archive.MANIFEST}: no agent was exported, so none can be started")
    if others := sorted(declared.keys() - set(FIELDS)):
        raise BadArchive(f"{archive.MANIFEST}: agent.{others[0]}: not a field that an archive has")
    try:
        wanted = codec.decode(agents.Spawn, {**declared, "name": name, "workspace": "keep"}, where="agent")
    except codec.Invalid as error:
        raise BadArchive(f"{archive.MANIFEST}: {error}") from None
    if wanted.isolation not in ("strict", "standard"):
        raise BadArchive(f"{archive.MANIFEST}: agent.isolation: expected strict or standard")
    if wanted.command and manifest.image is None and not is_portable(wanted.command[0]):
        raise BadArchive(f"{archive.MANIFEST}: agent.command[0]: a program of the host's isn't taken from an archive")
    return wanted


def check_size(spec: AgentSpec, found: archive.Unpacked | archive.Writer) -> None:
    limits = limits_of(spec)
    if found.bytes > limits.disk or found.files > limits.inodes:
        raise BadArchive(
            f"{archive.WORKSPACE}: {found.files} entries with {found.bytes} bytes are more than the agent's limits, "
            f"inodes {limits.inodes} and disk {limits.disk}"
        )


def read_script(spec: AgentSpec) -> bytes:
    """The script as it is now. Blocks."""
    assert spec.script is not None, "it has one"
    data = read_regular(spec.script, archive.MAX_SCRIPT + 1)
    if not data or len(data) > archive.MAX_SCRIPT:
        raise Unavailable(f"{spec.script}: expected a script of at most {archive.MAX_SCRIPT} bytes")
    return data


def open_archive(path: str) -> IO[bytes]:
    """A regular file of the host's by its real path. Blocks."""
    fd = openat2.open_at(-1, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, openat2.NO_LINKS)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > 2 * MAX_BYTES:
        os.close(fd)
        raise BadArchive(f"expected a file of at most {2 * MAX_BYTES} bytes")
    return open(fd, "rb")


def unpack(staged: Staged, file: IO[bytes], owner: HostIds | None) -> archive.Unpacked:
    file.seek(0)
    with staged.open() as top:
        return archive.unpack(file, top, owner)
