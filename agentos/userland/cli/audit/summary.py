"""A summary of one caller's entries in the audit log: counts, and the most frequent of each. No I/O."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field

from agentos.userland.cli.common import plural, printable
from agentos.userland.cli.times import format_time

from .table import Entry, truncate

INDENT = 15  # columns of the labels
TOP = 5  # objects of each kind that are shown
_USE = re.compile(
    r"(?P<model>[^ ]*) \(in (?P<input>[0-9]+), out (?P<output>[0-9]+), "
    r"cost (?P<cost>null|[0-9.e+-]+)(?: (?P<currency>[A-Z]{3}))?, "
)
UNKNOWN = "unknown currency"  # of costs that older kernels logged
_HOST = re.compile(r"(?:https?://|^CONNECT )([^/\s]+)")
_OBJECTS = {"READ": "read", "WRITE": "written", "EXEC": "commands"}
LABELS = {
    "ended": "ends",
    "read": "files read",
    "written": "files written",
    "commands": "commands",
    "hosts": "hosts",
    "models": "questions",
    "sent": "sent to",
    "received": "received from",
    "denied": "refused",
}


@define
class Summary:
    """What a caller did; :meth:`add` takes its entries in order, in the form of ``--json``.

    ``objects`` has the counts of each object by kind: files ``read`` and ``written``, ``commands``, ``hosts``,
    messages ``sent`` and ``received``, ``models``, what was ``denied``, and how lives ``ended``. ``costs`` are by
    currency; ``unpriced`` counts questions to models without a price.
    """

    entries: int = 0
    first: float | None = None
    last: float | None = None
    calls: Counter[str] = field(factory=Counter)
    failed: Counter[str] = field(factory=Counter)
    objects: dict[str, Counter[str]] = field(factory=dict)
    tokens_in: int = 0
    tokens_out: int = 0
    costs: dict[str, float] = field(factory=dict)
    unpriced: int = 0
    starts: int = 0
    restarts: int = 0
    unhealthy: int = 0
    given_up: int = 0

    def add(self, entry: Entry) -> None:
        """Count an entry; an intent only for its time, because its outcome follows."""
        self.entries += 1
        self.first = entry["at"] if self.first is None else self.first
        self.last = entry["at"]
        if entry["phase"] == "intent":
            return
        call, times, about = str(entry["call"]), int(entry["repeated"]), str(entry["about"])
        if call.startswith("AGENT_"):
            self._add_life(call, about, times)
            return
        self.calls[call] += times
        if entry["decision"] != "allow":
            self._count("denied", f"{call} {about} [{entry['rule']}]" if times == 1 else f"{call}, others", times)
        elif entry["outcome"] != "ok":
            self.failed[f"{call} {entry['outcome']}"] += times
        if entry["decision"] == "allow" and (entry["outcome"] == "ok" or call == "EXEC"):
            self._add_object(call, about, times)

    def _add_object(self, call: str, about: str, times: int) -> None:
        if call in ("SEND", "RECV"):
            self._count("sent" if call == "SEND" else "received", about.partition(" ")[2], times)
        elif call in _OBJECTS:
            self._count(_OBJECTS[call], about if times == 1 else "others", times)
        elif call == "HTTP":
            host = _HOST.search(about)
            self._count("hosts", host[1] if host else about, times)
        elif call == "THINK" and (use := _USE.match(about)):
            self._count("models", use["model"], times)
            self.tokens_in += int(use["input"])
            self.tokens_out += int(use["output"])
            if use["cost"] == "null":
                self.unpriced += times
            else:
                currency = use["currency"] or UNKNOWN
                self.costs[currency] = self.costs.get(currency, 0.0) + float(use["cost"])

    def _add_life(self, call: str, about: str, times: int) -> None:
        if call == "AGENT_READY":
            self.starts += times
            self.restarts += 0 if about.startswith("life 1,") else times
        elif call == "AGENT_EXITED":
            self._count("ended", about if times == 1 else "others", times)
        self.unhealthy += times * (call == "AGENT_UNHEALTHY")
        self.given_up += times * (call == "AGENT_FAILED")

    def _count(self, kind: str, what: str, times: int) -> None:
        self.objects.setdefault(kind, Counter())[what] += times

    def as_json(self) -> Mapping[str, Any]:
        """All of it as plain values; of each kind of object the total, the number of different ones, and the top."""
        found = {kind: self.objects.get(kind, Counter()) for kind in LABELS}
        return {
            "entries": self.entries,
            "first": self.first,
            "last": self.last,
            "calls": dict(self.calls.most_common()),
            "failed": dict(self.failed.most_common()),
            "tokens": {"in": self.tokens_in, "out": self.tokens_out},
            "costs": dict(self.costs),
            "unpriced": self.unpriced,
            "lives": {
                "starts": self.starts,
                "restarts": self.restarts,
                "unhealthy": self.unhealthy,
                "given_up": self.given_up,
            },
            **{
                kind: {
                    "count": counts.total(),
                    "different": len(counts),
                    "top": [{"what": what, "count": count} for what, count in counts.most_common(TOP)],
                }
                for kind, counts in found.items()
            },
        }


def summary_lines(name: str, summary: Summary, width: int) -> Iterator[str]:
    """The summary for people; what didn't happen isn't mentioned."""
    if summary.first is None or summary.last is None:
        return
    span = f"{format_time(summary.first)} to {format_time(summary.last)}"
    yield f"{printable(name)}: {summary.entries} entries, {span}"
    lives = [
        plural(summary.starts, "start") if summary.starts else "",
        plural(summary.restarts, "restart") if summary.restarts else "",
        f"unhealthy {plural(summary.unhealthy, 'time')}" if summary.unhealthy else "",
        f"given up {plural(summary.given_up, 'time')}" if summary.given_up else "",
    ]
    costs = [f"{amount:g} {currency}" for currency, amount in summary.costs.items()]
    if summary.unpriced:
        costs.append(f"{plural(summary.unpriced, 'question')} without a price")
    rows = {
        "lives": ", ".join(filter(None, lives)),
        "calls": ", ".join(f"{call} {count}" for call, count in summary.calls.most_common()),
        "failed": ", ".join(f"{what} {count}" for what, count in summary.failed.most_common()),
        "tokens": f"{summary.tokens_in} in, {summary.tokens_out} out" if "models" in summary.objects else "",
        "cost": ", ".join(costs),
    }
    for label, text in rows.items():
        if text:
            yield truncate(f"{label:<{INDENT}}{printable(text)}", width)
    for kind, label in LABELS.items():
        counts = summary.objects.get(kind, Counter())
        if not counts:
            continue
        yield f"{label:<{INDENT}}{counts.total()}" + (f", {len(counts)} different" if len(counts) > 1 else "")
        for what, count in counts.most_common(TOP):
            yield truncate(f"{count:>{INDENT + 4}}  {printable(what)}", width)
