"""The table of ``agentos top``: which agents, in which order, in which columns."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from agentos.userland.cli.agents.agents import describe_end, describe_requests, describe_state
from agentos.userland.cli.agents.resources import UNKNOWN, format_bytes, format_cpu
from agentos.userland.cli.columns import cut_middle
from agentos.userland.cli.common import printable
from agentos_sdk.encoding.quantities import duration

Agent = Mapping[str, Any]

SORTS = {"m": "memory", "c": "cpu", "r": "restarts", "n": "name", "$": "cost", "T": "tokens"}
MIN_NAME, MIN_NOTE = 12, 12
MAX_STATE = 11  # in a terminal that is narrower than WIDE
WIDE = 100
RIGHT = ("CPU%", "CPU", "MEM", "PEAK", "RESTARTS", "UPTIME", "TOKENS/H", "COST/H")
OF_MODEL = {"TOKENS/H": "hour_tokens", "COST/H": "hour_cost"}  # columns that are shown where anything was used


@define
class View:
    """What the user has chosen to see."""

    sort: str = "cpu"
    text: str = ""  # only agents with this in their name, state or supervisor
    tree: bool = False
    ended: bool = False  # also agents that have ended for good


@define
class Shares:
    """The share of a CPU that each agent has used between the last two polls, in percent."""

    _last: dict[tuple[int, int], tuple[float, float]] = field(factory=dict)  # by id and restarts: when, CPU seconds
    _percent: dict[int, float] = field(factory=dict)

    def update(self, agents: Sequence[Agent], now: float) -> None:
        """``now`` is when the kernel answered, in seconds of any clock."""
        last, self._last, self._percent = self._last, {}, {}
        for agent in agents:
            used, key = agent.get("cpu_seconds"), (agent["id"], agent["restarts"])
            if used is None or not agent["running"]:
                continue
            self._last[key] = now, used
            if (before := last.get(key)) is not None and now > before[0]:
                self._percent[agent["id"]] = max(0.0, used - before[1]) / (now - before[0]) * 100

    def of(self, agent: Agent) -> float | None:
        return self._percent.get(agent["id"])


def add_usage(agents: Sequence[Agent], usage: Sequence[Mapping[str, Any]]) -> list[Agent]:
    """The agents with ``hour_tokens`` and ``hour_cost``, of USAGE's rows of the last hour; None: nothing, or no price.

    USAGE knows an agent that another one spawned as ``PARENT/NAME``.
    """
    tokens, costs = Counter[str](), dict[str, float | None]()
    for row in usage:
        name, cost = row["name"], costs.get(row["name"], 0.0)
        tokens[name] += row["tokens"]
        costs[name] = None if cost is None or row["cost"] is None else cost + row["cost"]
    by_id = {agent["id"]: agent for agent in agents}

    def account(agent: Agent) -> str:
        above = by_id.get(agent["parent"])
        return str(agent["name"]) if above is None else f"{account(above)}/{agent['name']}"

    return [
        {**agent, "hour_tokens": tokens.get(account(agent)), "hour_cost": costs.get(account(agent))} for agent in agents
    ]


@frozen
class Row:
    """One line: an agent, or with ``agent`` None a supervisor in the tree."""

    agent: Agent | None
    name: str  # indented in the tree


def list_rows(agents: Sequence[Agent], view: View, shares: Shares) -> list[Row]:
    """The rows that the view shows, in its order; with ``tree`` in the order of the tree."""
    shown = [agent for agent in agents if (view.ended or agent["state"] != "exited") and matches(agent, view.text)]
    if view.tree:
        return list(tree_rows(shown))
    return [Row(agent, agent["name"]) for agent in sorted(shown, key=lambda agent: order(agent, view.sort, shares))]


def matches(agent: Agent, text: str) -> bool:
    return any(text.lower() in str(agent[key]).lower() for key in ("name", "state", "supervisor"))


def order(agent: Agent, sort: str, shares: Shares) -> tuple[float, float, str]:
    """The largest first, what isn't known last; equal ones by name."""
    if sort == "memory":
        memory = agent.get("memory_bytes")
        return (0.0 if memory is None else -memory - 1.0, 0.0, agent["name"])
    if sort == "cpu":
        share = shares.of(agent)
        return (0.0 if share is None else -share - 1.0, -(agent.get("cpu_seconds") or 0.0), agent["name"])
    if sort in ("cost", "tokens"):
        used = agent.get(f"hour_{sort}")
        return (0.0 if used is None else -used - 1.0, -(agent.get("hour_tokens") or 0.0), agent["name"])
    return (-agent["restarts"] if sort == "restarts" else 0.0, 0.0, agent["name"])


def tree_rows(agents: Sequence[Agent]) -> Iterator[Row]:
    """The agents below their supervisors and the agents that spawned them."""
    places = {}
    for agent in agents:
        path = tuple(agent["supervisor"].split("/"))
        places[path if path[-1] == agent["name"] else (*path, agent["name"])] = agent
    above = {place[:depth] for place in places for depth in range(2, len(place))}
    for place in sorted({*places, *above}):
        yield Row(places.get(place), "  " * (len(place) - 2) + place[-1])


def make_table(rows: Sequence[Row], shares: Shares, width: int) -> tuple[str, list[str]]:
    """The header and a line for each row, none longer than ``width``; NOTE is shown where there is one, and room."""
    cells = [make_cells(row, shares) for row in rows]
    shown = [name for name in RIGHT if name not in OF_MODEL or any(one[name] not in ("", UNKNOWN) for one in cells)]
    widths = {name: max([len(name), *(len(one[name]) for one in cells)]) for name in shown}
    widths["STATE"] = min(max([5, *(len(one["STATE"]) for one in cells)]), MAX_STATE if width < WIDE else width)
    for dropped in ("PEAK", "UPTIME", "RESTARTS", "CPU", *OF_MODEL):
        if sum(widths.values()) + 2 * len(widths) + MIN_NAME <= width:
            break
        widths.pop(dropped, None)
    room = max(width - sum(widths.values()) - 2 * len(widths), 1)
    widths["NAME"] = min(max([MIN_NAME, *(len(one["NAME"]) for one in cells)]), room)
    room -= widths["NAME"] + 2
    noted = room >= MIN_NOTE and any(one["NOTE"] for one in cells)

    def make_line(one: Mapping[str, str]) -> str:
        parts = [cut_middle(one["NAME"], widths["NAME"]).ljust(widths["NAME"])]
        parts.append(cut_middle(one["STATE"], widths["STATE"]).ljust(widths["STATE"]))
        parts += [one[name].rjust(widths[name]) for name in RIGHT if name in widths]
        return "  ".join([*parts, *([cut_middle(one["NOTE"], room)] if noted else [])]).rstrip()[:width]

    return make_line({name: name for name in ("NAME", "STATE", *RIGHT, "NOTE")}), [make_line(one) for one in cells]


def make_cells(row: Row, shares: Shares) -> dict[str, str]:
    agent = row.agent
    if agent is None:
        return {**dict.fromkeys(("STATE", *RIGHT, "NOTE"), ""), "NAME": printable(row.name)}
    share = shares.of(agent)
    return {
        "NAME": printable(row.name),
        "STATE": printable(describe_state(agent)),
        "CPU%": UNKNOWN if share is None else f"{share:.1f}",
        "CPU": format_cpu(agent.get("cpu_seconds")),
        "MEM": format_bytes(agent.get("memory_bytes")),
        "PEAK": format_bytes(agent.get("peak_memory_bytes")),
        "RESTARTS": str(agent["restarts"]),
        "UPTIME": duration(agent["uptime_ms"] / 1000) if agent["running"] else UNKNOWN,
        **{column: format_amount(agent.get(key)) for column, key in OF_MODEL.items()},
        "NOTE": describe_note(agent),
    }


def format_amount(amount: float | None) -> str:
    return UNKNOWN if amount is None else str(amount) if isinstance(amount, int) else f"{amount:.4g}"


def describe_note(agent: Agent) -> str:
    refused = "budget used up" if agent.get("budget_renews_at") is not None else ""
    return "; ".join(filter(None, [refused, describe_requests(agent["llm"]), describe_end(agent)]))


def describe_fleet(agents: Sequence[Agent]) -> str:
    """How many agents there are, by state: ``5 agents: 3 running, 1 failed, 1 exited``."""
    states = Counter(agent["state"] for agent in agents)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda one: -one[1]))
    return f"{len(agents)} agent{'' if len(agents) == 1 else 's'}{': ' if counts else ''}{counts}"
