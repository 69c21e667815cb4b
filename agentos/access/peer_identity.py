"""Peer identification on the operator's socket: by uid, and by ancestor processes (is it a process of an agent?)."""

import os
from collections.abc import Iterable, Mapping

import trio
from attrs import define, field

from agentos.agents.life.leftover_processes import parent_of
from agentos.agents.registry import Agent, Registry
from agentos.kernel.wire.listener import Peer
from agentos_sdk.errors import PermissionDenied

MAX_ANCESTORS = 1000  # bounds the walk, since /proc may change during it


@define(eq=False)
class Lookup:
    """A pending or finished lookup of a process's ancestors, shared by its connections that wait for it."""

    done: bool = False
    agent: Agent | None = None
    unknown: bool = False  # it descends from this kernel but from no agent, or has ended
    error: Exception | None = None  # the lookup failed


@define(eq=False)
class Peers:
    """Identifies peers. Within one uid this stops mistakes, not attacks: a process can arrange another parent.

    One thread reads /proc for all processes that wait at that time; no connection uses a thread of its own. A reading
    is shared only by connections made before it began, because a pid may be reused later.
    """

    registry: Registry
    _next: dict[int, Lookup] = field(factory=dict)  # by pid, for the next reading
    _reading: bool = False
    _read: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)  # waiting for a reading to end

    async def identify(self, peer: Peer) -> Agent | None:
        """The agent that a peer descends from, None for the operator; raises ``PermissionDenied`` for other peers."""
        if peer.uid not in (os.geteuid(), 0):
            raise PermissionDenied(f"this socket is for uid {os.geteuid()}, and you are uid {peer.uid}")
        if peer.pid in (os.getpid(), 0):  # 0: outside our pid namespace, so not a process of this kernel
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
        """Running agents by the pid of their program, the ancestor of all its processes."""
        running = [(agent.life.program, agent) for agent in self.registry if agent.pid is not None]
        return {program.pid: agent for program, agent in running if program is not None}

    async def _read_next(self) -> None:
        """Look up all waiting processes. Not interrupted by cancellation, since others wait for the result."""
        asked, self._next = self._next, {}
        programs = self._programs()
        self._reading = True
        try:
            with trio.CancelScope(shield=True):
                agent_pids = await trio.to_thread.run_sync(find_agent_pids, tuple(asked), frozenset(programs))
        except Exception as error:  # no thread can be started
            for lookup in asked.values():
                lookup.error = error
        else:
            for pid, lookup in asked.items():
                agent_pid = agent_pids[pid]
                lookup.unknown = agent_pid is None
                lookup.agent = programs[agent_pid] if agent_pid else None
        finally:
            for lookup in asked.values():
                lookup.done = True
            self._reading = False
            self._read.unpark_all()


def find_agent_pids(pids: Iterable[int], agents: frozenset[int]) -> Mapping[int, int | None]:
    """:func:`find_agent_pid` for each of these processes. Blocks."""
    return {pid: find_agent_pid(pid, agents) for pid in pids}


def find_agent_pid(pid: int, agents: frozenset[int]) -> int | None:
    """The pid in ``agents`` that ``pid`` is or descends from, the nearest one; 0 if it isn't the kernel's.

    None if it descends from the kernel but from no agent, or if that can't be determined.
    """
    own, current = os.getpid(), pid
    for _ in range(MAX_ANCESTORS):
        if current in agents:
            return current
        if current == own:
            return None
        parent = parent_of(current)
        if parent == 0 or not current:  # 0: outside our pid namespace, so not a process of this kernel
            return 0
        if parent is None:
            if current == pid:
                return None  # the process has ended, so its ancestors can't be determined
            parent = pid  # an ancestor has ended and its children have been reparented: start again
        current = parent
    return None
