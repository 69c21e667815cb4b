"""Counts of messages per caller and peer, written to the audit log each hour instead of an entry for each message."""

from typing import NamedTuple

from attrs import define, field

from agentos.kernel.ports import Entry

from .log import Audit

MAX_PEERS = 20  # of one caller, counted separately; the others are counted together
MAX_CALLERS = 1000  # counted at a time; one more, and all are written
OTHERS = "others"


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
    """The counts of one kernel since they were written last."""

    audit: Audit
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
        for (kind, name, call), found in counts.items():
            way = "to" if call == "SEND" else "from"
            for peer, count in found.by_peer.items():
                entry = Entry(found.agent, name, kind, call, f"{way} {peer}", "allow", "", "outcome", "ok")
                self.audit.note(entry, count)
