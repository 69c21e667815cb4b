"""The jail factory: prepares cgroup, workspace and policy, starts the program, and cleans up after its end."""

import contextlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import trio
from attrs import define, evolve, field
from msgspec.structs import replace

from agentos.agents.commands.fair_reader import Turns
from agentos.agents.life.host_faults import find_host_faults
from agentos.agents.life.output_rate import OutputRate
from agentos.agents.life.present import Life
from agentos.agents.registry import Agent
from agentos.agents.workspaces.workspace import Workspace, Workspaces
from agentos.images.errors import BadStore
from agentos.images.store import Images, Opened
from agentos.sandbox.cgroups import lifetime, v1, v2
from agentos.sandbox.cgroups.discover import Cgroups, Group
from agentos.sandbox.cgroups.values import CgroupEntry, CgroupError
from agentos.sandbox.host import Host
from agentos.sandbox.host_ids import STORE_IDS, HostIdPool, first_of_block
from agentos.sandbox.plan import plan_sandbox, plan_unjailed
from agentos.sandbox.policy import BadPolicy, Directory, Policy
from agentos.sandbox.report import probe
from agentos.sandbox.report.levels import Finding
from agentos.sandbox.report.walls import Observed
from agentos.sandbox.start.ahead import MAX_WAITING
from agentos.sandbox.start.sample import take_sample
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Join, RunScript, Step
from agentos.sandbox.watch.disk import DiskWatcher
from agentos.sandbox.watch.memory import MemoryWatcher
from agentos.threads import run_in_thread
from agentos_sdk.values import HostIds

from . import errors, guards, layout
from .interpreters import interpreter
from .isolation_report import Layers, NotIsolated, Walls, describe_no_overlay, judge, lacking
from .jail import Connect, Jail, JailOwner, JailParts, KernelAddress, lineage
from .layout import AgentContents
from .limits import can_change, change_limits, group_limits, list_live_limits
from .one_shot import OneShot

log = logging.getLogger(__name__)

KeepStart = Callable[[JailOwner, Workspace], Awaitable[bool]]
"""Keeps what a life begins with, before its program starts; whether the workspace has to be prepared anew."""

BUILD_DELAY = 0.02  # seconds from a program's start until the next jail is built ahead


async def keep_nothing(agent: JailOwner, workspace: Workspace) -> bool:
    return False


@define(eq=False)
class Jails:
    """Creates jails for one kernel. ``sdk`` is the package's directory; ``sdk_alone`` holds only the package.

    When the layers that don't work here have been taken out of ``host``, ``probed`` is set: no program starts before.
    ``found`` says for people which layers work.
    """

    spawner: Spawner
    host: Host
    cgroups: Cgroups
    outer_ids: HostIdPool | None
    blocks: HostIdPool | None  # of ids, for agents with root inside
    workspaces: Workspaces
    images: Images
    sdk: str
    sdk_alone: str
    waived: Collection[str]
    memory: MemoryWatcher = field(factory=MemoryWatcher)
    disk: DiskWatcher = field(factory=DiskWatcher)
    probed: trio.Event = field(factory=trio.Event)
    found: str | None = None
    overlay: Finding | None = None  # whether a workspace can be one, once that was tried
    keep_start: KeepStart = keep_nothing
    turns: Turns = field(factory=Turns)  # for fair reading of program output
    output_rate: OutputRate = field(factory=OutputRate)
    _living: dict[str, Jail] = field(factory=dict)  # by lineage
    _started: deque[Sequence[Step]] = field(factory=lambda: deque(maxlen=MAX_WAITING))  # plans, to build jails ahead
    _any_started: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)  # waiting for the next of them

    async def serve(self) -> None:
        """Enforce the limits that cgroups don't enforce, until cancelled."""
        await self.workspaces.sweep()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.memory.serve)
            nursery.start_soon(self.disk.serve)
            nursery.start_soon(guards.kill_unprotected, self._living)
            nursery.start_soon(guards.kill_left, self._living)
            nursery.start_soon(guards.remove_planted, self._living, self.workspaces.take_planted)
            for pool in (self.outer_ids, self.blocks):
                if pool is not None:
                    nursery.start_soon(pool.serve)
            nursery.start_soon(self._build_ahead)
            nursery.start_soon(self._collect_images)
            root = self.cgroups.root
            nursery.start_soon(self.spawner.builder.serve, root if isinstance(root, v2.Group) else None)
            if isinstance(root, v1.Group):
                nursery.start_soon(guards.kill_after_oom, self._living)

    @contextlib.asynccontextmanager
    async def open(self, agent: JailOwner, connect: Connect) -> AsyncIterator[Jail]:
        """Start the agent's program in a sandbox; nothing is left of it on return. Raises :class:`JailError`.

        ``connect`` is called once, in a thread; what else it raises is passed on.
        """
        parts: JailParts | None = None
        if not self.probed.is_set():
            await self.probed.wait()
        async with contextlib.AsyncExitStack() as undo:
            try:
                parts = await self._prepare(undo, agent, connect)
                jail = await self._start(parts)
                undo.push_async_callback(self._close, parts, jail)
                self._living[lineage(agent)] = jail
                await self._watch(parts, jail)
            except tuple(errors.START_ERRORS) as error:
                raise await errors.explain_low_limit(parts, error) or errors.explain(error, agent.spec) from None
            yield jail

    @property
    def live_limits(self) -> Collection[str]:
        """The limits that can be changed while a program runs."""
        return list_live_limits(self.cgroups.root)

    async def find_config_writers(self) -> Collection[str]:
        """The agents that can write to the configuration file, which the host has replaced in their workspace."""
        leads_by = self.workspaces.config_file.leads_by
        return await run_in_thread(guards.find_writers, tuple(self._living.values()), leads_by)

    async def take_identity(self, key: str) -> HostIds | None:
        """The uid and gid on the host of an agent whose files are about to be made; None: the kernel's own."""
        if self.outer_ids is None:
            return None
        return await self.outer_ids.take(key, True, frozenset(self._living), self.workspaces.list_kept)

    async def change_limits(self, agent: Agent) -> bool:
        """Apply the limits of an agent's spec to its running program; whether that was possible."""
        life = agent.life
        jail = life.jail
        if not isinstance(life, Life) or jail is None or not can_change(jail, agent.spec):
            return False
        try:
            jail.layers = await run_in_thread(change_limits, jail, agent.spec, self.cgroups.missing)
        except (CgroupError, BadPolicy) as error:
            log.info("%s: its limits can't be changed while it runs: %s", agent.name, error)
            return False
        jail.limits = layout.limits(agent.spec)
        self.memory.change_limit(agent.id, jail.limits.memory)
        life.layers, life.lacking = jail.layers, lacking(jail.layers)
        return True

    async def _prepare(self, undo: contextlib.AsyncExitStack, agent: JailOwner, connect: Connect) -> JailParts:
        spec = agent.spec
        outer, workspace, image = None, None, None
        if spec.image is not None:
            image = await run_in_thread(self.images.open, spec.image)
            undo.callback(image.close)
        if spec.jailed:
            key = lineage(agent)
            pool = self.blocks if spec.user == "root" else self.outer_ids
            if pool is not None:
                keeps = spec.workspace != "tmp" and spec.workspace_mode != "overlay"  # mounts show layers as its own
                outer = await pool.take(key, keeps, frozenset(self._living), self.workspaces.list_kept)
                outer = first_of_block(outer.uid) if pool is self.blocks else outer
            if spec.workspace_mode == "overlay" or (image is not None and image.upper):
                await self._require_overlays()
            limits = layout.limits(spec)
            owner = HostIds(STORE_IDS[0], STORE_IDS[0]) if outer is not None and spec.user == "root" else outer
            prepare = partial(self.workspaces.prepare, key, spec.workspace, limits, owner, spec.workspace_mode)
            workspace = await prepare()
            undo.push_async_callback(self._release, agent, workspace)
            if await self.keep_start(agent, workspace):
                workspace = await prepare()
            _tell(agent, workspace.notices)
        parts = await run_in_thread(self._build_plan, agent, connect, outer, workspace, image)
        undo.push_async_callback(remove_group, parts)
        if self._may_wait_in_group(agent):
            parts.taken = await self.spawner.builder.take(parts.steps, with_group=True)
            if parts.taken is not None:
                parts.group = parts.taken.group  # remove_group removes it, whatever happens from here on
                undo.push_async_callback(self.spawner.builder.end_unused, parts.taken)
            assert self.cgroups.root is not None, "it is of version 2"
            await run_in_thread(self._set_group, parts, self.cgroups.root)
        return parts

    async def _require_overlays(self) -> None:
        """Find out once whether this host has overlays, with the layers in the state directory."""
        if self.overlay is None:
            place = await run_in_thread(self.workspaces.overlays.store.make_place)
            self.overlay = await probe.probe_overlay(self.spawner, self.host, place)
        if not self.overlay.works:
            raise NotIsolated(describe_no_overlay(self.overlay))

    async def _release(self, agent: JailOwner, workspace: Workspace) -> None:
        if workspace.kind == "image":
            self.spawner.closer.hurry()  # until then it is mounted
        _tell(agent, await self.workspaces.release(workspace))

    def _build_plan(
        self,
        agent: JailOwner,
        connect: Connect,
        outer: HostIds | None,
        workspace: Workspace | None,
        image: Opened | None,
    ) -> JailParts:
        """Do all blocking preparation in one thread call: a thread switch costs as much as most of these steps.

        But for the group, where a jail may wait in one.
        """
        if isinstance(agent, Agent) and agent.declared:  # a spawned one's paths were checked by SPAWN
            for fault in find_host_faults(agent.spec):
                raise fault
        address = connect()
        if outer is not None and address.socket is not None:
            os.chown(address.socket, outer.uid, outer.gid)
        around = self._around(agent)
        grouped = around.controllers if around is not None else frozenset()
        host = replace(self.host, memory_cgroup="memory" in grouped, pids_cgroup="pids" in grouped)
        policy, steps = self._choose_steps(agent, address, outer, workspace, image, host)
        parts = JailParts(agent, address.environment, outer, workspace, None, CgroupEntry(), host, policy, steps)
        if image is not None:
            parts.image = image.image
        if around is not None and not self._may_wait_in_group(agent):
            self._set_group(parts, around)
        return parts

    def _may_wait_in_group(self, agent: JailOwner) -> bool:
        """Whether a jail may wait for it in a group of its own, which can't be within that of another agent."""
        return isinstance(self.cgroups.root, v2.Group) and agent.spec.jailed and agent.parent is None

    def _set_group(self, parts: JailParts, around: Group) -> None:
        """Give this life a cgroup in another one: that in which its jail has waited, or a new one."""
        agent = parts.agent
        limits = group_limits(agent.spec).restrict_to(around.controllers)
        if parts.taken is None:
            parts.group, parts.open_entry = lifetime.create(around, f"{agent.id}-{agent.lives}", limits)
            return
        assert parts.taken.group is not None, "it was taken with its group"
        parts.group = parts.taken.group.limit(limits)
        parts.open_entry = parts.group.open_entry()

    def _choose_steps(
        self,
        agent: JailOwner,
        address: KernelAddress,
        outer: HostIds | None,
        workspace: Workspace | None,
        image: Opened | None,
        host: Host,
    ) -> tuple[Policy | None, Sequence[Step]]:
        spec, python = agent.spec, host.interpreter
        assert python is not None, "the probe finds our own interpreter"
        if image is not None:  # the kernel's interpreter is only in the jail built ahead, before it has the image
            spec = layout.complete(spec, image)
        elif spec.python is not None and spec.python != python.executable:
            python = interpreter(spec.python)
        if workspace is None:
            program = layout.bare_program(spec, python.executable, self.sdk_alone, address.environment)
            return None, plan_unjailed(program, host, layout.limits(spec))
        if isinstance(agent, OneShot):
            policy = layout.policy(spec, AgentContents(), python, workspace, None, self.sdk)
            return policy, plan_sandbox(policy, agent.program, host, outer)
        contents = layout.find_contents(spec)
        if agent.caller.replayed is not None:  # its host's name is the recorded one, too
            spec = replace(spec, name=agent.caller.replayed.name)
        policy = layout.policy(spec, contents, python, workspace, address.socket, self.sdk, address.sockets, image)
        executable = python.executable if image is None else spec.python or ""
        program = layout.program(spec, contents, executable, address.environment)
        program = evolve(program, two_way=agent.converse is not None)
        return policy, plan_sandbox(policy, program, host, outer)

    async def _start(self, parts: JailParts) -> Jail:
        spec, limits = parts.agent.spec, layout.limits(parts.agent.spec)
        watched = spec.jailed and not parts.host.memory_cgroup
        walls = Walls(spec, limits, parts.steps, parts.group, self.cgroups.missing, watched, parts.workspace)
        seen: list[Layers] = []

        async def look(observed: Observed, program: int) -> None:
            if walls.blocks:
                seen.append(await run_in_thread(walls.record, observed, program))
            else:  # a thread switch costs as much
                seen.append(walls.record(observed, program))
            judge(spec, seen[-1], self.waived)
            if any(group.exceeds_pids() for group in self._groups_above(parts.agent)):
                raise errors.too_many_processes()

        try:
            sandbox = await self.spawner.spawn(parts.steps, cgroup=parts.open_entry, inspect=look, taken=parts.taken)
        except BaseException:
            if parts.workspace is not None:
                await self.workspaces.forget(parts.workspace)  # noqa: ASYNC102, ASYNC120 - it shields itself
            raise
        finally:
            parts.open_entry.close()
            if not isinstance(self.cgroups.root, v2.Group) or self._may_wait_in_group(parts.agent):
                self.replace_waiting(parts.steps)  # it is used up, even if the start failed
        mount = parts.workspace.mount if parts.workspace is not None else None
        protected = mount.protected if isinstance(mount, Directory) else ()
        return Jail(sandbox, seen[-1], limits, parts.group, parts, protected)

    def replace_waiting(self, steps: Sequence[Step]) -> None:
        """Have a jail built in the background for the next plan like this one, which has been started."""
        if isinstance(self.cgroups.root, v2.Group) and type(steps[0]) is Join:
            return  # a command's process is born in its group
        # One process waits for commands, and many of them must not make jails for agents wait longer.
        if type(steps[0]) is not Join or all(type(other[0]) is not Join for other in self._started):
            self._started.append(steps)
            self._any_started.unpark_all()

    def _around(self, agent: JailOwner) -> Group | None:
        parent = self._living.get(lineage(agent.parent)) if agent.parent is not None else None
        return parent.group if parent is not None else self.cgroups.root

    def _groups_above(self, agent: JailOwner) -> Iterator[Group]:
        """Yield the cgroups of the agents that it descends from. Its own has room for a program and its PID 1."""
        while agent.parent is not None:
            agent = agent.parent
            jail = self._living.get(lineage(agent))
            if jail is not None and jail.group is not None:
                yield jail.group

    async def _watch(self, parts: JailParts, jail: Jail) -> None:
        agent, sandbox = parts.agent, jail.sandbox
        if not agent.spec.jailed:
            return
        if jail.group is None or "memory" not in jail.group.controllers:
            parent = agent.parent.id if agent.parent is not None else None
            self.memory.add(agent.id, sandbox.pid, jail.limits.memory, jail.exceeded, parent, sandbox.tmpfs.values())
        watched = parts.workspace.watched if parts.workspace is not None else None
        if parts.policy is not None and parts.policy.image is not None and parts.policy.builds:
            watched = f"{parts.policy.image.upper}/tree"
        if watched is not None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            directory = await run_in_thread(os.open, watched, flags)
            try:
                self.disk.add(agent.id, directory, jail.limits.disk, jail.limits.inodes, jail.exceeded, sandbox.pid)
            finally:
                os.close(directory)

    async def _close(self, parts: JailParts, jail: Jail) -> None:
        """Wait until the program and its commands have ended; the caller's exit stack undoes the rest."""
        self.memory.remove(parts.agent.id)
        self.disk.remove(parts.agent.id)
        await jail.end()
        with trio.CancelScope(shield=True):  # commands were killed with the program; wait for their cleanup
            while jail.commands:
                await jail.left.park()
        self._living.pop(lineage(parts.agent), None)

    async def _collect_images(self) -> None:
        """Remove files that no image has any more: those that a former life had when its image was replaced."""
        try:
            await run_in_thread(self.images.collect)
        except (BadStore, OSError) as error:
            log.warning("files of images that may not be needed any more stay: %s", error)

    async def _build_ahead(self) -> None:
        """Build a jail for each that was started, delayed so as not to slow the program that has just started."""
        while True:
            if not self._started:
                await self._any_started.park()
            await trio.sleep(BUILD_DELAY)
            steps = self._started.popleft()
            if isinstance(steps[-1], RunScript) and not self.spawner.zygote.has_sample:
                await take_sample(self.spawner, self.host, self.sdk)
            await self.spawner.builder.build(steps)


def _tell(agent: JailOwner, sentences: Iterable[str]) -> None:
    """Tell the user of an agent's workspace, in the agent's log and the kernel's."""
    for sentence in sentences:
        agent.output.add("kernel", sentence)
        log.warning("%s: %s", agent.name, sentence)


async def remove_group(parts: JailParts) -> None:
    """Remove the cgroup of a program that has ended or was never started, unless it is removed already."""
    if parts.group is not None and not parts.group_removed:
        await lifetime.remove(parts.group)
