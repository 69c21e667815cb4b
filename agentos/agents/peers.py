"""Who is at the other end of the operator's socket: told by its uid and by whom it descends from."""

import os

import trio
from attrs import frozen

from agentos.kernel.door import Peer
from agentos_sdk.errors import PermissionDenied

from .orphans import parent_of
from .registry import Agent, Registry

DEEPEST = 1000  # generations; /proc may change under our eyes, so that a walk has to end somewhere


@frozen
class Peers:
    """Between processes of one uid this stops mistakes, not attacks: a process can arrange to have another parent."""

    registry: Registry

    async def identify(self, peer: Peer) -> Agent | None:
        """The agent that a peer descends from, or None for the operator; ``PermissionDenied`` for anybody else."""
        if peer.uid not in (os.geteuid(), 0):
            raise PermissionDenied(f"this socket is for uid {os.geteuid()}, and you are uid {peer.uid}")
        if peer.pid == os.getpid():
            return None
        alive = [agent for agent in self.registry if agent.pid is not None]
        pids = {agent.program.pid: agent for agent in alive if agent.program is not None}  # above all that it started
        ancestors = await trio.to_thread.run_sync(line_of, peer.pid, frozenset(pids))
        if ancestors is None:
            raise PermissionDenied(
                "you descend from this kernel but from none of its agents that live, or are gone already"
            )
        return pids[ancestors] if ancestors else None


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
