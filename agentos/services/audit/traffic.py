"""Counts of messages per caller and peer, written to the audit log each hour, and at the end of an agent's life.

An entry for each message would be too many.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from attrs import define, field

from agentos.kernel.ports import Entry
from agentos.services.events import AgentExited

from .log import Audit

MAX_PEERS = 20  # of one caller, counted separately; the others are counted together
MAX_CALLERS = 1000  # counted at a time; one more, and all are written
OTHERS = "others"
END_SECONDS = 10.0  # between two lives whose counts are written at their end; those of others wait for the hour


class Party(NamedTuple):
    """A caller by its kind and name, and whether it sent or received: ``SEND`` or ``RECV``."""

    kind: str
    name: str
    call: str


@define(eq=False)
class _Counts:
    agent: int  # the caller's id
    by_peer: dict[str, int] = field(factory=dict)


@define(eq=False)
class Traffic:
    """The counts of one kernel since they were written last. ``clock`` gives seconds."""

    audit: Audit
    clock: Callable[[], float] = time.monotonic
    _wrote_end: float = -END_SECONDS
    _counts: dict[Party, _Counts] = field(factory=dict)

    def count(self, agent: int, party: Party, peer: str) -> None:
        """Count one message; ``agent`` is the caller's id."""
        found = self._counts.get(party)
        if found is None:
            if len(self._counts) >= MAX_CALLERS:
                self.flush()
            found = self._counts[party] = _Counts(agent)
        peers = found.by_peer
        if peer not in peers and len(peers) >= MAX_PEERS:
            peer = OTHERS
        peers[peer] = peers.get(peer, 0) + 1

    def flush(self) -> None:
        """Write the counts, and begin anew."""
        counts, self._counts = self._counts, {}
        for party, found in counts.items():
            self._write(party, found)

    def end_life(self, event: AgentExited) -> None:
        """Write the counts of an agent whose life has ended; a subscriber."""
        own = [party for party, found in self._counts.items() if found.agent == event.agent_id]
        if own and self.clock() >= self._wrote_end + END_SECONDS:
            self._wrote_end = self.clock()
            for party in own:
                self._write(party, self._counts.pop(party))

    def _write(self, party: Party, found: _Counts) -> None:
        way = "to" if party.call == "SEND" else "from"
        for peer, count in found.by_peer.items():
            about = f"{way} {peer}"
            entry = Entry(found.agent, party.name, party.kind, party.call, about, "allow", "", "outcome", "ok")
            self.audit.note(entry, count)
