"""Lives of an agent and their calls, from the entries of the audit log. No I/O.

Entries are in the form of ``agentos audit --json``. An entry's time is that of its end.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from agentos.userland.cli.audit.table import Entry

LIFE_CALLS = ("AGENT_READY", "AGENT_EXITED")  # the entries that tell when a life began
_THINK = re.compile(
    r"(?P<model>\S*) \((?:in (?P<input>[0-9]+), out (?P<output>[0-9]+), "
    r"cost (?P<cost>null|[0-9.e+-]+)(?: (?P<currency>[A-Z]{3}))?, )?"
    r"question sha256:(?P<digest>[0-9a-f]{64})(?:, queued (?P<queued>[0-9.]+) s)?"
    r"(?:.*; left out: (?P<left_out>[a-z0-9_, ]+)\)$)?"
)


@define
class Life:
    """``began`` and ``ended`` are seconds since the epoch; ``ended`` and ``reason`` are None until the end is recorded.

    ``next_began`` is when the next life in the log began.
    """

    agent_id: int
    began: float
    ended: float | None = None
    reason: str | None = None
    next_began: float | None = None


def find_lives(entries: Iterable[Entry]) -> Sequence[Life]:
    """The lives of one agent, the oldest first, from its entries of :data:`LIFE_CALLS` in order."""
    lives: list[Life] = []
    for entry in entries:
        if entry["repeated"] > 1:  # a count of entries that were not written
            continue
        began = entry["at"] - (entry["duration"] or 0.0)
        running = lives[-1] if lives and lives[-1].ended is None else None
        if entry["call"] == "AGENT_READY" or running is None or running.agent_id != entry["agent_id"]:
            if lives:
                lives[-1].next_began = began
            lives.append(Life(entry["agent_id"], began))
        if entry["call"] == "AGENT_EXITED":
            lives[-1].ended, lives[-1].reason = entry["at"], entry["about"]
    return lives


@frozen
class Think:
    """The model's part of a THINK; figures missing in the audit log are None.

    ``currency`` is a code such as USD; entries of earlier versions have none. ``queued`` is the seconds that the
    question waited in the line.
    """

    model: str
    digest: str
    tokens_in: int | None
    tokens_out: int | None
    cost: float | None
    queued: float | None
    currency: str | None = None
    left_out: str | None = None  # what its program asked for and the model wasn't offered
    number: int | None = None  # among the questions of a recording


@define
class TracedCall:
    """One call or event of a life.

    ``start`` is seconds since the life began. ``duration`` is None where it isn't known, and for events. ``kept`` is
    the question with its answer, if the kernel still has them.
    """

    entry: Entry
    start: float
    duration: float | None
    think: Think | None = None
    kept: Mapping[str, Any] | None = None

    @property
    def call(self) -> str:
        return str(self.entry["call"])

    @property
    def is_refused(self) -> bool:
        return bool(self.entry["decision"] != "allow")

    @property
    def is_unfinished(self) -> bool:
        """Whether an intent was recorded and no outcome: it still runs, or the kernel was killed."""
        return bool(self.entry["phase"] == "intent")

    def as_json(self) -> Mapping[str, Any]:
        entry, think, kept = self.entry, self.think, self.kept
        names = ("id", "at", "call", "about", "decision", "rule", "phase", "outcome", "repeated")
        fields = {name: entry[name] for name in names}
        fields |= {"start": round(self.start, 6), "duration": self.duration}
        if think is not None:
            fields["think"] = {
                "model": think.model,
                "queued": think.queued,
                "tokens_in": think.tokens_in,
                "tokens_out": think.tokens_out,
                "cost": think.cost,
                "currency": think.currency,
            }
        return fields if kept is None else {**fields, "contents": kept}


@define
class Trace:
    """The last calls of a life, at most ``most``; :meth:`add` takes entries in order.

    ``left_out`` is the number of earlier ones. ``seen_until`` is the time of the last entry.
    """

    began: float
    most: int
    calls: dict[int, TracedCall] = field(factory=dict)  # by the entry's id
    left_out: int = 0
    seen_until: float = 0.0

    def add(self, entry: Entry) -> None:
        """Add an entry; an outcome takes the place of its intent."""
        self.seen_until = max(self.seen_until, entry["at"])
        self.calls.pop(entry["intent"], None)
        call = str(entry["call"])
        is_event = entry["repeated"] > 1 or (call.startswith("AGENT_") and call != "AGENT_READY")
        duration = None if is_event else entry["duration"]
        start = entry["at"] - (duration or 0.0) - self.began
        self.calls[entry["id"]] = TracedCall(entry, max(0.0, start), duration, read_think(entry))
        if len(self.calls) > self.most:
            del self.calls[next(iter(self.calls))]
            self.left_out += 1

    def in_order(self) -> Sequence[TracedCall]:
        return sorted(self.calls.values(), key=lambda call: (call.start, call.entry["id"]))

    def add_contents(self, questions: Sequence[Mapping[str, Any]]) -> None:
        """Give each question to the THINK with its digest; of equal ones the newest to the last."""
        by_digest: dict[str, list[Mapping[str, Any]]] = {}
        for question in questions:
            by_digest.setdefault(question["digest"], []).append(question)
        for call in reversed(self.calls.values()):
            if call.think is None or not by_digest.get(call.think.digest):
                continue
            call.kept = kept = by_digest[call.think.digest].pop()
            if call.think.queued is None:  # it failed: the audit log has its duration alone
                used = kept["usage"]
                call.think = evolve(
                    call.think,
                    queued=kept["queued_ms"] / 1000,
                    tokens_in=used["input"],
                    tokens_out=used["output"] + used["thinking"],
                    cost=kept["cost"],
                )


def read_think(entry: Entry) -> Think | None:
    found = _THINK.match(str(entry["about"])) if entry["call"] == "THINK" else None
    if found is None:
        return None
    priced = found["cost"] not in (None, "null")
    return Think(
        found["model"],
        found["digest"],
        int(found["input"]) if found["input"] else None,
        int(found["output"]) if found["output"] else None,
        float(found["cost"]) if priced else None,
        float(found["queued"]) if found["queued"] else None,
        found["currency"],
        found["left_out"],
    )
