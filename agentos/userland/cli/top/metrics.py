"""``agentos metrics``: resources that agents, the kernel and the host use, now and in the last minutes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import click

from agentos.userland.cli import completed
from agentos.userland.cli.agents.agents import describe_requests
from agentos.userland.cli.agents.inspect import describe_use, wrap_beside
from agentos.userland.cli.agents.resources import UNKNOWN, format_bytes, format_share
from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    parse_agent,
    plural,
    print_json,
    print_table,
    printable,
)
from agentos_sdk import AgentOSClient
from agentos_sdk.encoding.quantities import duration
from agentos_sdk.opcodes import Op
from agentos_sdk.values import LLMClass

LABEL_COLUMNS = 11  # at least
LEVELS = "▁▂▃▄▅▆▇█"
CHART_COLUMNS = 40
COLUMN_SECONDS = 6.0  # of a chart's column at least: the kernel samples every five
HEADER = ["NAME", "STATE", "CPU%", "MEM", "LIMIT", "PIDS", "FDS", "SOURCE"]


@click.command()
@click.argument("agent", required=False, shell_complete=completed.agents)
@click.option("--history", metavar="TIME", help="Also the last TIME, such as 5m; 15m at most.")
@kernel_options
def metrics(agent: str | None, history: str | None, socket_path: str | None, as_json: bool) -> None:
    """Show what agents, the kernel and the host use.

    With AGENT, a name or an id, only what that one uses.

    CPU is that of the last seconds, in percent of one core. What isn't known is -.
    """
    with kernel(socket_path) as client:
        if agent is not None:
            fields = {"agent_id": find_agent(client, agent), "history": history}
            found = check_reply(client.request(Op.METRICS_AGENT, fields))["metrics"]
            agents = []
        else:
            # An agent may see what it spawned, and not the whole kernel.
            reply = client.request(Op.METRICS_SYSTEM, {"history": history})
            found = reply.get("metrics") if reply.get("code") == "permission_denied" else check_reply(reply)["metrics"]
            agents = check_reply(client.all_agent_metrics())["agents"]
    if as_json:
        print_json(found if agent is not None else {"system": found, "agents": agents})
        return
    facts = list(agent_facts(found) if agent is not None else system_facts(found) if found else ())
    column = max(LABEL_COLUMNS, *(len(label) + 1 for label, _ in facts)) if facts else 0
    for label, value in facts:
        for line in wrap_beside(label.ljust(column), printable(value), text_width()):
            click.echo(line)
    if agents:
        if found:
            click.echo()
        print_table(agent_rows(agents), HEADER, ("NAME", "SOURCE"))


def find_agent(client: AgentOSClient, name: str) -> int:
    """The id of the agent that has, or had last, that name."""
    if isinstance(given := parse_agent(name), int):
        return given
    ids = [int(agent["id"]) for agent in client.list_agents(all=True) if agent["name"] == name]
    if not ids:
        raise Failed(f"no agent is called {name!r}", {"code": "not_found"})
    return max(ids)


def agent_rows(agents: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The rows of the table of agents, the largest use of CPU time first."""
    rows = []
    for agent in sorted(agents, key=lambda agent: (-(cpu_of(agent) or 0.0), agent["name"])):
        group, process = agent["cgroup"] or {}, agent["process"] or {"memory": {}}
        memory = group.get("memory_bytes") if group else process["memory"].get("rss")
        limit = group.get("memory_limit_bytes")
        pids, most, fds = group.get("pids", process.get("threads")), group.get("pids_limit"), process.get("fds")
        rows.append(
            [
                agent["name"],
                agent["status"],
                format_percent(cpu_of(agent)),
                format_bytes(memory),
                format_bytes(limit),
                UNKNOWN if pids is None else f"{pids}" if most is None else f"{pids}/{most}",
                UNKNOWN if fds is None else str(fds),
                (agent["source"] or agent["reason"] or UNKNOWN).partition(",")[0],
            ]
        )
    return rows


def cpu_of(agent: Mapping[str, Any]) -> float | None:
    """The cores that an agent uses: by its control group, which counts what it spawned too, else by its processes."""
    found = agent["cgroup"] or agent["process"]
    return found["cpu"] if found is not None else None


def agent_facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Labels and values about one agent, in the order shown."""
    age = f" for {duration(found['uptime_ms'] / 1000)}" if found["uptime_ms"] else ""
    yield "name", f"{found['name']} (id {found['agent_id']}), {found['status']}{age}"
    total, group, process = found["total_cpu_seconds"], found["cgroup"], found["process"]
    in_all = f", {total:.2f} s in all lives" if total is not None else ""
    yield "cpu", f"{format_rate(cpu_of(found))} of a core{in_all}"
    if group is not None:
        yield (
            "memory",
            f"{format_share(group['memory_bytes'], group['memory_limit_bytes'])}, "
            f"peak {format_bytes(group['memory_peak_bytes'])}, with files in the cache",
        )
        limit = f" of {group['pids_limit']}" if group["pids_limit"] is not None else ""
        yield "pids", f"{UNKNOWN if group['pids'] is None else group['pids']}{limit}"
    if process is not None:
        memory = process["memory"]
        counts = ", ".join(plural(process[name], word) for name, word in COUNTED if process[name] is not None)
        yield (
            "processes",
            f"rss {format_bytes(memory['rss'])}, pss {format_bytes(memory['pss'])}, "
            f"address space {format_bytes(memory['vms'])}" + (f"; {counts}" if counts else ""),
        )
    yield "calls", describe_calls(found["calls"]) or "none"
    place = {"paused": 0, **found["llm"]}
    yield "model", ", ".join(filter(None, [describe_requests(place), describe_use(found["llm"])])) or "not used"
    yield "source", "; ".join(filter(None, [found["source"], found["reason"]])) or "nothing has counted"
    if found["history"] is not None:
        yield from charts(found["history"], AGENT_CHARTS)


def describe_calls(counted: Mapping[str, Mapping[str, int]]) -> str:
    """The calls of an agent, the most frequent first: ``RECV 12, STORE 3 (1 conflict)``."""
    shown = []
    for name, outcomes in sorted(counted.items(), key=lambda one: -sum(one[1].values())):
        failed = ", ".join(f"{count} {code}" for code, count in outcomes.items() if code != "ok")
        shown.append(f"{name} {sum(outcomes.values())}" + (f" ({failed})" if failed else ""))
    return ", ".join(shown)


def system_facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Labels and values about the host, the kernel and the queue for the model."""
    cpu, own, llm = found["cpu"], found["kernel"], found["llm"]
    load = f", load {cpu['load'][0]:.2f}" if cpu["load"] is not None else ""
    yield "host", f"{format_cores(cpu['used'])} of {cpu['count']} cores{load}"
    yield "memory", format_share(found["memory"]["used_bytes"], found["memory"]["total_bytes"])
    yield "disk", format_share(found["disk"]["used_bytes"], found["disk"]["total_bytes"])
    network = found["network"]
    yield "network", f"{format_bytes(network['received_bytes'])} received, {format_bytes(network['sent_bytes'])} sent"
    lag = f", loop lag {own['loop_lag_seconds'] * 1000:.1f} ms" if own["loop_lag_seconds"] is not None else ""
    yield (
        "kernel",
        f"{format_rate(own['cpu'])} of a core, {format_bytes(own['memory_bytes'])}, "
        f"{own['fds']} of {own['fds_limit']} descriptors, "
        f"{own['connections']} of {own['connections_limit']} connections{lag}",
    )
    waiting, in_flight = len(llm["waiting"]), len(llm["in_flight"])
    classes = Counter(one["class"] for one in llm["waiting"])
    by_class = ", ".join(f"{classes[one]} {one}" for one in get_args(LLMClass) if classes[one])
    waiting_text = f"{waiting} waiting{f' ({by_class})' if set(classes) - {'normal'} else ''}"
    yield "model", f"{in_flight} in flight, {waiting_text}, fairness {llm['jain']:.2f}"
    if found["history"] is not None:
        yield from charts(found["history"], SYSTEM_CHARTS)


def format_percent(cores: float | None) -> str:
    return UNKNOWN if cores is None else f"{cores * 100:.1f}"


def format_cores(cores: float | None) -> str:
    return UNKNOWN if cores is None else f"{cores:.2f}"


def format_rate(cores: float | None) -> str:
    return UNKNOWN if cores is None else f"{format_percent(cores)}%"


def format_memory(size: float) -> str:
    return format_bytes(int(size))


def format_count(number: float) -> str:
    return f"{number:.0f}"


def format_lag(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


Format = Callable[[float], str]
COUNTED = (("threads", "thread"), ("fds", "descriptor"))
# By the column of the history: its label, and how a value is shown.
AGENT_CHARTS: Mapping[str, tuple[str, Format]] = {
    "cpu": ("cpu", format_rate),
    "memory_bytes": ("memory", format_memory),
    "pids": ("pids", format_count),
}
SYSTEM_CHARTS: Mapping[str, tuple[str, Format]] = {
    "cpu": ("host", format_cores),
    "memory_bytes": ("memory", format_memory),
    "kernel_cpu": ("kernel", format_rate),
    "loop_lag_seconds": ("loop lag", format_lag),
    "connections": ("connections", format_count),
    "llm_waiting": ("waiting", format_count),
}


def charts(
    history: Mapping[str, Sequence[float | None]], shown: Mapping[str, tuple[str, Format]]
) -> Iterator[tuple[str, str]]:
    """A line for each column of a history: a chart, and the least and the largest value."""
    at = [moment for moment in history["at"] if moment is not None]
    if not at:
        yield "history", "no samples in this time"
        return
    yield "history", f"{plural(len(at), 'sample')} in {duration(at[-1] - at[0])}"
    for name, (label, describe) in shown.items():
        known = [value for value in history[name] if value is not None]
        if known:
            yield f"  {label}", f"{draw_chart(at, history[name])} {describe(min(known))} to {describe(max(known))}"


def draw_chart(at: Sequence[float], values: Sequence[float | None]) -> str:
    """The largest value of each stretch of time as a bar, from 0 up; a blank where nothing is known."""
    first, span = at[0], at[-1] - at[0]
    columns = min(CHART_COLUMNS, max(1, int(span / COLUMN_SECONDS)))
    largest: list[float | None] = [None] * columns
    for moment, value in zip(at, values, strict=True):
        place = min(int((moment - first) / span * columns), columns - 1) if columns > 1 else 0
        if value is not None:
            largest[place] = max(value, largest[place] or 0.0)
    top = max((value for value in largest if value is not None), default=0.0) or 1.0
    bars = (" " if one is None else LEVELS[min(int(one / top * len(LEVELS)), len(LEVELS) - 1)] for one in largest)
    return "".join(bars)
