"""The present life of an agent, what stays of it, and what stays of an agent that has ended for good.

Problem: an agent outlives its programs, and LIST, INSPECT and METRICS ask about all of them. Fields that belong to
one life, kept beside those of the agent, have to be reset one by one, and each that is forgotten describes a dead
program.
Idea: what belongs to a life is in one object, which the next life replaces. What was found out about it is there
until then; when the agent has ended for good, a frozen record with the same names takes its place.
Must stay true: the next life gets nothing of this one that isn't handed to it by name; after its end a life has no
handle but that of the program, whose status says that it has ended (decision 100).
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import trio
from attrs import define, field, frozen

from agentos.sandbox.sandbox import Sandbox
from agentos_sdk.encoding import codec
from agentos_sdk.values import Layer, ResourceUsage
from supervisors import Supervisor

from .writes import Writes

if TYPE_CHECKING:
    from agentos.agents.jail.jail import Jail
    from agentos.agents.workspaces.view import View


@define
class Health:
    """What the watchdog and the health command have found."""

    idle: float = 0.0  # seconds without a call; counted only with a watchdog
    checked_at: float | None = None  # when the last check ended, in seconds since the epoch
    failures: int = 0  # of the last checks, in a row
    problem: str | None = None  # why the last check failed or couldn't be run


@define(eq=False)
class Life:
    """The present life of an agent or, with what was found out about it alone, the last one.

    ``layers`` and ``lacking`` are those of the life before until its own program runs.
    """

    layers: Mapping[str, Layer] = field(factory=dict)  # isolation layers
    lacking: Sequence[str] = ()  # requested layers that are not in force
    since: float = 0.0  # trio's clock, seconds
    used: ResourceUsage | None = None  # as counted at its end
    health: Health = field(factory=Health)
    connected: bool = False  # its program has called
    program: Sandbox | None = None
    jail: "Jail | None" = None  # while its program runs
    view: "View | None" = None  # of files, while a jailed program runs
    writes: Writes = field(factory=Writes)  # the kernel's to these files
    still: trio.Lock = field(factory=trio.Lock)  # while its program is held still
    nursery: trio.Nursery | None = None
    children: Supervisor | None = None  # of the agents that it spawns, from the first one on
    spawns: bool = False  # whether it may spawn agents: until it stops
    start_scope: trio.CancelScope | None = None  # around the wait until it counts as started
    stop_scope: trio.CancelScope | None = None  # around the time between SIGTERM and SIGKILL

    def close(self) -> None:
        """Drop what only a life in progress has; the program that has ended is asked for its status."""
        self.jail = self.view = self.nursery = self.children = self.start_scope = self.stop_scope = None
        self.spawns = False


@frozen(eq=False)
class EndedLife:
    """What is known of the last life of an agent that has ended for good: 1,000 of these are kept (decision 82)."""

    packed_layers: bytes  # as compressed JSON
    lacking: Sequence[str]
    used: ResourceUsage | None
    health: Health
    since: ClassVar = 0.0
    spawns: ClassVar = False
    jail: ClassVar[None] = None
    view: ClassVar[None] = None
    program: ClassVar[None] = None
    nursery: ClassVar[None] = None
    children: ClassVar[None] = None
    start_scope: ClassVar[None] = None
    stop_scope: ClassVar[None] = None

    @classmethod
    def of(cls, life: "Life | EndedLife") -> "EndedLife":
        return cls(zlib.compress(codec.encode(life.layers), 1), life.lacking, life.used, life.health)

    @property
    def layers(self) -> Mapping[str, Layer]:
        return {name: Layer(**fields) for name, fields in json.loads(zlib.decompress(self.packed_layers)).items()}
