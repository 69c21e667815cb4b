"""Who is at the other end of the operator's socket: told by its uid and by whom it descends from."""

import os
from collections.abc import Iterable, Mapping

import trio
from attrs import define, field

from agentos.kernel.door import Peer
from agentos_sdk.errors import PermissionDenied

from .orphans import parent_of
from .registry import Agent, Registry

DEEPEST = 1000  # generations; /proc may change under our eyes, so that a walk has to end somewhere


@define(eq=False)
class Lookup:
    """A process whose ancestors are to be looked for, or have been: for all its connections that wait meanwhile."""

    done: bool = False
    agent: Agent | None = None
    unknown: bool = False  # it descends from this kernel, but from no agent, or has gone
    error: Exception | None = None  # it could not be looked for


@define(eq=False)
class Peers:
    """Between processes of one uid this stops mistakes, not attacks: a process can arrange to have another parent.

    One thread reads /proc for all processes that wait by then; no connection takes a thread for itself. Only
    connections made before a reading began share its answer: later a pid may be another process's.
    """

    registry: Registry
    _next: dict[int, Lookup] = field(factory=dict)  # by pid, for the next reading
    _reading: bool = False
    _read: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)  # where one waits for a reading to end

    async def identify(self, peer: Peer) -> Agent | None:
        """The agent that a peer descends from, or None for the operator; ``PermissionDenied`` for anybody else."""
        if peer.uid not in (os.geteuid(), 0):
            raise PermissionDenied(f"this socket is for uid {os.geteuid()}, and you are uid {peer.uid}")
        if peer.pid in (os.getpid(), 0):  # 0: it is none of our pid namespace, and so none of ours
            return None
        if (agent := self._programs().get(peer.pid)) is not None:
            return agent
        lookup = self._next.setdefault(peer.pid, Lookup())
        while not lookup.done:
            if self._reading:
                await self._read.park()
            else:
                await self._read_next()
        if lookup.error is not None:
            raise lookup.error
        if lookup.unknown:
            raise PermissionDenied(
                "you descend from this kernel but from none of its agents that live, or are gone already"
            )
        return lookup.agent

    def _programs(self) -> Mapping[int, Agent]:
        """Living agents by the pid of their program, which is above all that it started."""
        return {
            agent.program.pid: agent for agent in self.registry if agent.pid is not None and agent.program is not None
        }

    async def _read_next(self) -> None:
        """Look for all processes that wait now. Also where this caller is cancelled: others wait for the answer."""
        asked, self._next = self._next, {}
        programs = self._programs()
        self._reading = True
        try:
            with trio.CancelScope(shield=True):
                lines = await trio.to_thread.run_sync(lines_of, tuple(asked), frozenset(programs))
        except Exception as error:  # no thread can be started
            for lookup in asked.values():
                lookup.error = error
        else:
            for pid, lookup in asked.items():
                line = lines[pid]
                lookup.unknown = line is None
                lookup.agent = programs[line] if line else None
        finally:
            for lookup in asked.values():
                lookup.done = True
            self._reading = False
            self._read.unpark_all()


def lines_of(pids: Iterable[int], agents: frozenset[int]) -> Mapping[int, int | None]:
    """:func:`line_of` for each of these processes. Blocks."""
    return {pid: line_of(pid, agents) for pid in pids}


def line_of(pid: int, agents: frozenset[int]) -> int | None:
    """The nearest of ``agents`` that ``pid`` is or descends from; 0 for nobody of ours.

    None where it is us that it descends from, or where nobody can tell.
    """
    own, here = os.getpid(), pid
    for _ in range(DEEPEST):
        if here in agents:
            return here
        if here == own:
            return None
        above = parent_of(here)
        if above == 0 or not here:  # 0: it is none of our pid namespace, and so none of ours
            return 0
        if above is None:
            if here == pid:
                return None  # it has gone already, and nobody can tell whose it was
            above = pid  # an ancestor has gone, and its children have another parent now: from the beginning
        here = above
    return None
