"""Reload: reads the configuration file again, and changes what differs in the running kernel.

One reload follows the other, in a task of the kernel: a client that goes away, or an agent that is restarted by its own
request, leaves nothing half done.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence

import attrs
import trio
from attrs import define, field
from msgspec import Struct, structs

from agentos.access.callers import Callers
from agentos.agents.tree.changes import TreeChange, compare_trees
from agentos.agents.tree.supervision import Supervision
from agentos.agents.workspaces.config_file import Unprotected
from agentos.kernel.internal_errors import internal
from agentos.mcp.servers import Servers, find_changed
from agentos.services.events import ConfigReloaded
from agentos.services.http.secrets import UnreadableSecret
from agentos.threads import run_in_thread
from agentos_sdk.errors import BadRequest, Busy, CallError, Unavailable
from agentos_sdk.project import trusted_uids

from .exposed_files import log_exposed_files
from .load import Config, ConfigError, load

log = logging.getLogger("agentos.reload")

MAX_WAITING = 16  # reloads that wait for the one that is made
TABLES = ("kernel", "logs", "storage", "recording", "llm", "http", "approvals", "notify", "metrics", "otel")  # at start


class Reloaded(Struct, frozen=True):
    """What differs in the file: agents and groups, other keys that hold at once, and keys that need a new kernel."""

    changes: Sequence[TreeChange]
    settings: Sequence[str] = ()
    kernel_restart: Sequence[str] = ()


@define(eq=False)
class Job:
    """One request for a reload."""

    dry_run: bool
    done: trio.Event = field(factory=trio.Event)
    withdrawn: bool = False
    result: Reloaded | CallError | None = None


Queue = tuple[trio.MemorySendChannel[Job], trio.MemoryReceiveChannel[Job]]


@define(eq=False)
class Reload:
    """``config`` is what holds now: the running kernel's settings with the agents of the last reload."""

    config: Config
    supervision: Supervision
    callers: Callers
    servers: Servers
    _queue: Queue = field(factory=lambda: trio.open_memory_channel[Job](MAX_WAITING))

    async def request(self, dry_run: bool) -> Reloaded:
        """Reload, or with ``dry_run`` say what a reload would change; a cancelled one that has begun goes on.

        Raises ``BadRequest`` with all mistakes in the file, ``AlreadyExists``, ``Busy``, ``Unavailable``.
        """
        job = Job(dry_run)
        try:
            self._queue[0].send_nowait(job)
        except trio.WouldBlock:
            raise Busy(f"{MAX_WAITING} reloads wait already: try again later") from None
        try:
            await job.done.wait()
        finally:
            job.withdrawn = True
        if isinstance(job.result, CallError):
            raise job.result
        assert job.result is not None, "it is done"
        return job.result

    async def request_and_log(self) -> Reloaded | None:
        """Reload for the kernel itself: the log has the result, or all mistakes."""
        try:
            return await self.request(dry_run=False)
        except CallError as error:
            log.error("nothing was reloaded: %s", error)
            return None

    async def serve(self) -> None:
        """Make the reloads that are requested, one after the other, until cancelled."""
        await self.supervision.begun.wait()
        async for job in self._queue[1]:
            if not job.withdrawn:
                try:
                    job.result = await self._reload(job.dry_run)
                except CallError as error:
                    job.result = error
                except Exception as bug:
                    job.result = internal(bug, "a reload")
            job.done.set()

    async def _reload(self, dry_run: bool) -> Reloaded:
        supervision, jails = self.supervision, self.supervision.deps.jails
        writers = await jails.find_config_writers()  # first: no agent can write to the file while it is read
        new = await self._load()
        if not dry_run:
            await self._check_protected(writers)
        if supervision.stopping or supervision.root.exit is not None:
            raise Unavailable("the kernel is stopping")
        found = compare_configs(self.config, new, jails.live_limits)
        values = await self._read_secrets(new)
        changed = self.callers.secrets.find_changed(new.http.secrets, values)
        found = structs.replace(found, settings=[*found.settings, *(f"http.secrets.{name}" for name in changed)])
        self._check_faults(new, found)
        if not dry_run:
            await run_in_thread(log_exposed_files, new)
        self._check_names(new)  # last, so that no caller takes one of them meanwhile
        if dry_run:
            return found
        self.callers.secrets.replace(new.http.secrets, values)
        self.callers.use_sets(new.permissions)
        self.servers.replace(new.mcp)
        changes = await supervision.declared.reload(self.config.root, new.root, found.changes)
        http = attrs.evolve(self.config.http, secrets=new.http.secrets)
        self.config = attrs.evolve(self.config, root=new.root, permissions=new.permissions, http=http, mcp=new.mcp)
        await self.servers.pins.keep_only(self.servers.settings)
        await supervision.kept_stops.forget_others([one.name for one in new.root.agents()])
        found = Reloaded(changes, found.settings, found.kernel_restart)
        supervision.registry.publish(
            ConfigReloaded([(one.kind, one.name, one.fields) for one in changes], found.settings, found.kernel_restart)
        )
        return found

    async def _load(self) -> Config:
        if self.config.file is None:
            raise BadRequest("the kernel was started without a configuration file: there is nothing to reload")
        try:
            new = await run_in_thread(load, self.config.file, self.config)
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        if strangers := sorted(new.owners - self.config.owners - trusted_uids()):
            raise BadRequest(
                f"{new.file}: belongs to uid {strangers[0]} since the kernel was started, so it isn't obeyed: "
                "change its owner back, or start the kernel anew and name the file"
            )
        return new

    async def _check_protected(self, writers: Collection[str]) -> None:
        """Raise ``BadRequest`` if an agent may have written the file that was just read."""
        try:
            config_file = self.supervision.deps.jails.workspaces.config_file
            await run_in_thread(config_file.check_protected, writers)
        except Unprotected as error:
            raise BadRequest(str(error)) from None

    async def _read_secrets(self, new: Config) -> Mapping[str, str]:
        try:
            return await run_in_thread(self.callers.secrets.read, new.http.secrets, os.environ)
        except UnreadableSecret as error:
            raise BadRequest(f"{new.file}: {error}") from None

    def _check_names(self, new: Config) -> None:
        """Raise ``BadRequest`` for the names of new agents that callers have which the file doesn't declare."""
        registry, known = self.supervision.registry, {one.name for one in self.config.root.agents()}
        mistakes = []
        for name in (one.name for one in new.root.agents()):
            if name not in known and (registry.is_taken(name) or self.callers.mail.is_taken(name)):
                number = self.callers.mail.by_name(name).id
                mistakes.append(
                    f"{new.file}: the name {name!r} is taken by a caller with the id {number}: end it first"
                )
        if mistakes:
            raise BadRequest("\n".join(mistakes))

    def _check_faults(self, new: Config, found: Reloaded) -> None:
        """Raise ``BadRequest`` if an agent would be started, or a server used, which lacks something on this host.

        An agent that goes on as it is doesn't count: it may have lost its program since.
        """
        begun = {change.name for change in found.changes if change.kind in ("added", "restarted")}
        begun |= {f"mcp.{name}" for name in find_changed(self.config.mcp, new.mcp)}
        if mistakes := [str(fault) for fault in new.faults if fault.agent in begun]:
            raise BadRequest("\n".join(mistakes))


def compare_configs(old: Config, new: Config, live_limits: Collection[str]) -> Reloaded:
    """What differs between two configurations."""
    sets = [
        name
        for name in {**old.permissions, **new.permissions}
        if old.permissions.get(name) != new.permissions.get(name)
    ]
    restart = [
        f"{table}.{name}"
        for table in TABLES
        for had, gets in [(getattr(old, table), getattr(new, table))]
        for name in list_fields(gets)
        if getattr(had, name) != getattr(gets, name) and (table, name) != ("http", "secrets")  # they hold at once
    ]
    if old.dashboard != new.dashboard:
        restart.append("dashboard")
    return Reloaded(
        compare_trees(old.root, new.root, live_limits),
        [
            *(f"permissions.{name}" for name in sets),
            *(f"mcp.servers.{name}" for name in find_changed(old.mcp, new.mcp)),
        ],
        restart,
    )


def list_fields(settings: object) -> Sequence[str]:
    """The names of a settings class's fields."""
    if isinstance(settings, Struct):
        return settings.__struct_fields__
    return [one.name for one in attrs.fields(type(settings))]  # type: ignore[arg-type]
