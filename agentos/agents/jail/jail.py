"""A running jail: a program in its sandbox, with the resources made for it."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import trio
from attrs import define, field, frozen
from msgspec import Struct

from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import GroupSpec
from agentos.agents.workspaces.workspace import Workspace
from agentos.images.store import Image
from agentos.sandbox.cgroups.discover import Group
from agentos.sandbox.cgroups.values import CgroupEntry, CgroupError, Evidence
from agentos.sandbox.host import Host
from agentos.sandbox.plan import plan_way_in
from agentos.sandbox.policy import Limits, Policy
from agentos.sandbox.report.limits import SHIM_PROCESSES, describe_ending
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.ahead import TakenJail
from agentos.sandbox.status import Status
from agentos.sandbox.steps import SocketAddress, Step
from agentos.sandbox.watch import disk, memory
from agentos.threads import run_in_thread
from agentos_sdk.values import HostIds, ResourceUsage

from .guards import Left, Unprotected
from .isolation_report import Layers
from .one_shot import OneShot

JailOwner = Agent | OneShot


class Unhealthy(Struct, frozen=True):
    """A program's watchdog or health command found that it doesn't work."""

    reason: str

    def __str__(self) -> str:
        return self.reason


KillReason = memory.Exceeded | disk.Exceeded | Unprotected | Unhealthy | Left


@frozen
class KernelAddress:
    """How a program reaches the kernel: the path of its socket, if it has one, and the environment that says so.

    ``sockets`` are the kernel's in the network of the program's jail.
    """

    socket: str | None = None
    sockets: tuple[SocketAddress, ...] = ()
    environment: Mapping[str, str] = {}


Connect = Callable[[], KernelAddress]
"""Opens the socket that a program will connect to. Blocks."""


@define(eq=False)
class JailParts:
    """The resources of a program that is about to start."""

    agent: JailOwner
    environment: Mapping[str, str]
    outer: HostIds | None
    workspace: Workspace | None
    group: Group | None
    open_entry: CgroupEntry  # into the group; closed when the program has joined it
    host: Host  # as used for the plan
    policy: Policy | None  # None: the program runs unconfined
    steps: Sequence[Step]
    group_removed: bool = False
    taken: TakenJail | None = None  # which has waited in the group
    image: Image | None = None


@define(eq=False)
class Jail:
    """A running program in its sandbox, with the resources made for it."""

    sandbox: Sandbox
    layers: Layers
    limits: Limits
    group: Group | None
    parts: JailParts
    protected: Sequence[str] = ()  # names in its workspace that it must not write
    over: KillReason | None = None  # why the kernel has killed the program
    evidence: Evidence | None = None  # from its cgroup, once it has ended
    usage: ResourceUsage | None = None  # from its cgroup, once it has ended
    highest: int = 0  # bytes, of memory that it was seen to use; Linux counts the largest of its processes alone
    cpu_seconds: float = 0.0  # as last read of /proc; Linux forgets that of a program whose PID 1 is killed
    commands: int = 0  # started by EXEC that run in it
    left: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)  # waiting for an EXEC command to end

    @cached_property
    def way_in(self) -> Sequence[Step]:
        """The steps of a command that enters it, before the command's own step."""
        assert self.parts.policy is not None, "only a jail is entered"
        return plan_way_in(self.parts.policy, self.parts.host)

    @property
    def own_processes(self) -> int:
        """How many processes of the sandbox's own are counted with the program's; its limit allows for them."""
        return 0 if self.sandbox.no_shim else SHIM_PROCESSES

    def exceeded(self, what: KillReason) -> None:
        """Kill the program: it exceeds a limit, a protected name is lost, or its watchdog or health command says so."""
        self.over = what
        if isinstance(what, memory.Exceeded):
            self.highest = max(self.highest, what.found)
        self.sandbox.signal(signal.SIGKILL)

    async def end(self) -> Status:
        """Kill all processes in it, keep the cgroup's counters and remove the cgroup; not interrupted by cancellation.

        The cgroup stays while commands have cgroups in it.
        """
        status = await self.sandbox.kill()
        if self.group is not None and self.evidence is None:
            with trio.CancelScope(shield=True), contextlib.suppress(CgroupError):
                await run_in_thread(self._count_and_remove, self.group)
        return status

    def _count_and_remove(self, group: Group) -> None:
        self.evidence, self.usage = group.evidence(), group.usage()
        self.parts.group_removed = group.remove_empty()

    @contextlib.contextmanager
    def hold_for_command(self) -> Iterator[None]:
        """Keep the jail's resources until an EXEC command in it has been cleaned up."""
        self.commands += 1
        try:
            yield
        finally:
            self.commands -= 1
            self.left.unpark_all()

    def why(self, status: Status) -> str | None:
        """The limits that the program hit, as text; None if there are none."""
        return describe_ending(status, self.limits, self.evidence, self.over)


def lineage(agent: JailOwner) -> str:
    """The agent's key for stored data. It contains all ancestors: a reused name gives no access to old data."""
    return agent.name if agent.parent is None else f"{lineage(agent.parent)}+{agent.name}"


def list_lineages(root: GroupSpec, registry: Registry) -> AbstractSet[str]:
    """Those of all agents that are declared, also in a configuration without a tree yet, or haven't ended for good."""
    declared = {spec.name for spec in root.agents()}
    return declared | {lineage(agent) for agent in registry if agent.declared or not agent.over.is_set()}
