"""``agentos inspect``: shows everything about one agent, with each layer of its isolation."""

import textwrap
import time
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import click

from agentos.userland.cli import completed
from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import agent_fields, check_reply, kernel, kernel_options, plural, print_lines
from agentos.userland.cli.times import format_time
from agentos_sdk.encoding.quantities import duration

from .agents import LIMIT_LAYERS, describe_missing, describe_requests, describe_unavailable, describe_wait

EFFECTS = ("allow", "ask", "deny")
LAYERS = {"max_pids": "pids", "cpu_quota": "cpu"}  # limits whose layer has another name
BYTE_LIMITS = ("memory", "file_size", "disk", "tmp")


@click.command()
@click.argument("name", shell_complete=completed.agents)
@click.option("--isolation", is_flag=True, help="Also its walls and limits, layer by layer.")
@click.option("-v", "--verbose", is_flag=True, help="The same, with the evidence that each stands.")
@kernel_options
def inspect(name: str, isolation: bool, verbose: bool, socket_path: str | None, as_json: bool) -> None:
    """Show all that is known of the agent NAME (or with that id)."""
    with kernel(socket_path) as client:
        found = check_reply(client.inspect(**agent_fields(name)))
        permissions = {} if as_json else client.get_permissions(found["id"]).get("permissions", {})
    width = text_width()
    lines = [*fact_lines(found, permissions, width)]
    if isolation or verbose:
        lines += isolation_lines(found, width, verbose)
    print_lines(lines, found, as_json)


def fact_lines(found: Mapping[str, Any], permissions: Mapping[str, Any], width: int) -> Iterator[str]:
    """What an operator asks first, then what the agent was started with."""
    shown = [(label, value) for label, value in agent_facts(found, permissions) if value]
    indent = max(len(label) for label, _ in shown) + 2
    for label, value in shown:
        yield from wrap_beside(label.ljust(indent), value, width)


def isolation_lines(found: Mapping[str, Any], width: int, verbose: bool) -> Iterator[str]:
    """A table of the layers, with the evidence for active ones if ``verbose``; below it the control groups."""
    layers = found["isolation"]["layers"]
    if not layers:
        return
    rows = [["LAYER", "ASKED", "ACTIVE", "MECHANISM", "EVIDENCE, OR REASON" if verbose else "REASON"]]
    rows += [
        [
            name,
            format_requested(name, layer["asked"]),
            "yes" if layer["active"] else "no",
            layer["mechanism"] or "-",
            "; ".join(filter(None, [layer["evidence"] if verbose and layer["active"] else "", layer["reason"]])),
        ]
        for name, layer in layers.items()
    ]
    *narrow, mechanism = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    mechanism = min(mechanism, (width - sum(narrow)) // 2)
    yield ""
    for row in rows:
        head = "".join(cell.ljust(room) for cell, room in zip(row, narrow, strict=False))
        how, why = wrap(row[3], mechanism - 2), wrap(row[4], width - sum(narrow) - mechanism)
        for left, right in zip_longest(how, why, fillvalue=""):
            yield f"{head}{left:<{mechanism}}{right}".rstrip()
            head = " " * sum(narrow)
    yield from (f"cgroup  {directory}" for directory in found["cgroups"] or [])


def wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def wrap_beside(head: str, text: str, width: int) -> Iterator[str]:
    """A label, and a text wrapped to its right; words stay whole, so that paths can be copied."""
    first, *more = textwrap.wrap(text, width - len(head), break_long_words=False, break_on_hyphens=False)
    yield f"{head}{first}"
    yield from (" " * len(head) + part for part in more)


def agent_facts(found: Mapping[str, Any], permissions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of label and value; the value is empty if there is nothing to show."""
    end, pid = found["end"], found["pid"]
    yield "name", f"{found['name']} (id {found['id']})"
    restarted = f"restarted {plural(found['restarts'], 'time')}" if found["restarts"] else ""
    yield "state", ", ".join(filter(None, [describe_wait(found), f"pid {pid}" if pid else "", restarted]))
    yield "last end" if pid else "ended", end["reason"] if end is not None else ""
    yield from health_facts(found["health"])
    if found["since"] is not None:
        yield "since", f"{format_time(found['since'])} ({duration(found['uptime_ms'] / 1000)})"
    yield "uses", describe_usage(found["usage"])
    yield "limits", describe_limits(found["limits"], found["isolation"]["layers"])
    yield from model_facts(found["llm"])
    yield "permissions", describe_permissions(permissions)
    yield "isolation", describe_isolation(found["isolation"])
    yield "network", describe_network(found["spec"]["network"], permissions)
    yield from start_facts(found)


def health_facts(health: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The watchdog and the health command, with what they have found."""
    if health is None:
        return
    if health["watchdog"] is not None:
        yield "watchdog", f"no call for {duration(health['idle'])} of at most {duration(health['watchdog'])}"
    if health["command"] is None:
        return
    if health["checked_at"] is None:
        result = "not yet"
    else:
        when = time.strftime("%H:%M:%S", time.localtime(health["checked_at"]))
        failed = f"failed, {health['failures']} of {health['limit']} in a row" if health["failures"] else "ok"
        result = f"{failed} at {when}" + (f": {health['problem']}" if health["problem"] else "")
    yield "health", f"{result} (each {duration(health['interval'])}: {' '.join(health['command'])})"


def start_facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the agent was started with, and by what."""
    spec = found["spec"]
    yield "supervisor", f"{found['supervisor']}, {spec['restart']}"
    yield "parent", found["parent"]["name"] if found["parent"] is not None else ""
    yield "fork of", found["forked_from"] or ""
    yield "children", ", ".join(f"{child['name']} ({child['state']})" for child in found["children"])
    yield "runs", " ".join([spec["script"] or "", *(spec["command"] or []), *spec["args"]]).strip()
    image = found["image"]
    yield "image", " ".join(filter(None, (image["name"], image["digest"]))) if image is not None else ""
    yield "code", spec["code"] or ""
    yield "python", spec["python"] or ""
    yield "directory", spec["cwd"] or ""
    yield "variables", ", ".join(spec["env"])
    proxy = found["upstream_proxy"]
    yield "proxy", f"{proxy} resolves names, and judges their addresses" if proxy is not None else ""
    jailed = found["isolation"]["level"] != "none"
    yield "workspace", (spec["workspace"] or "a directory of the host's") if jailed else ""
    yield "user", f"{found['outer']['uid']}:{found['outer']['gid']} on the host" if found["outer"] is not None else ""


def model_facts(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The agent's use of the model, what its questions wait for, and its budgets."""
    parts = [describe_requests(model["place"]), describe_use(model["spent"])]
    parts += [describe_waits(model), describe_weight(model)]
    yield "model", ", ".join(filter(None, parts))
    for state in model["providers"]:
        yield "waits for", describe_unavailable(state)
    for budget in model["budgets"]:
        yield "budget", describe_budget(budget)


def describe_permissions(given: Mapping[str, Any]) -> str:
    """A set in one line: ``level readonly and 3 rules, within those of boss``."""
    rules = sum(len(texts) for effect in EFFECTS for texts in given.get(effect, {}).values())
    parts = [f"level {given['level']}" if "level" in given else "", plural(rules, "rule") if rules else ""]
    bounds = [bound["name"] for bound in given.get("bounded_by", []) if is_restrictive(bound)]
    return " and ".join(filter(None, parts)) + (f", within {', '.join(bounds)}" if bounds else "")


def describe_network(network: str, given: Mapping[str, Any]) -> str:
    """The network in one line: ``filtered (pypi.org, *.pythonhosted.org, asks for github.com)``."""
    if network != "filtered":
        return network
    allowed, asked = (given.get(effect, {}).get("domains", ()) for effect in ("allow", "ask"))
    level = [f"level {given['level']}"] if given.get("level") in ("standard", "unrestricted") else []
    return f"filtered ({', '.join([*level, *allowed, *(f'asks for {one}' for one in asked)]) or 'no domains'})"


def is_restrictive(bound: Mapping[str, Any]) -> bool:
    """Whether a set restricts anything; the operator's own set, for one, doesn't."""
    return {name: value for name, value in bound.items() if name != "name"} != {"level": "unrestricted"}


def describe_use(spent: Mapping[str, Any]) -> str:
    """The agent's use of the model since the kernel started."""
    if not spent["calls"]:
        return ""
    generated = spent["output"] + spent["thinking"]
    cached = f" ({spent['cache_read']} cached)" if spent["cache_read"] else ""
    return f"{plural(spent['calls'], 'question')} asked, {spent['input']} tokens in{cached}, {generated} out"


def describe_waits(model: Mapping[str, Any]) -> str:
    waits = model["waits"]
    return f"waited {waits['p50_ms']:.0f} ms (p50), {waits['p95_ms']:.0f} ms (p95)" if waits else ""


def describe_weight(model: Mapping[str, Any]) -> str:
    weight = f"weight {model['weight']:g}" if model["weight"] != 1 else ""
    return ", ".join(filter(None, (f"class {model['class']}" if model["class"] != "normal" else "", weight)))


def describe_budget(budget: Mapping[str, Any]) -> str:
    """How much of a budget is used, and when it renews."""
    renewed = duration(max(0.0, budget["renews_at"] - time.time()))
    reserved = f" and {budget['reserved']:,.10g} reserved" if budget["reserved"] else ""
    used = f"{budget['used']:,.10g}{reserved} of {budget['most']:,.10g} {budget['what']} per {duration(budget['per'])}"
    given = "the default" if budget["by_default"] else f"of {budget['name']}"
    refuses = "; used up" if budget["refuses"] else ""
    return f"{used}, {given}{refuses}; renews in {renewed}"


def describe_isolation(isolation: Mapping[str, Any]) -> str:
    """The isolation in one line: ``standard: all walls stand; cpu not limited: no cgroup delegated``."""
    level, layers = isolation["level"], isolation["layers"]
    if level == "none":
        return "none: no walls"
    if not layers:
        return f"{level}: not started yet"
    missing = {name: layer["reason"] for name, layer in layers.items() if layer["asked"] and not layer["active"]}
    walls = [f"{describe_missing(name)}: {reason}" for name, reason in missing.items() if name not in LIMIT_LAYERS]
    limits = [f"{describe_missing(name)}: {reason}" for name, reason in missing.items() if name in LIMIT_LAYERS]
    return f"{level}: " + "; ".join([*(walls or ["all walls stand"]), *(limits or ["all limits hold"])])


def describe_usage(usage: Mapping[str, Any]) -> str:
    """The resources in use, the source of the figures, and why some are missing."""
    counted = [
        f"memory {format_size(usage['memory'])}" if usage["memory"] is not None else "",
        f"peak {format_size(usage['peak'])}" if usage["peak"] is not None else "",
        f"pids {usage['pids']}" if usage["pids"] is not None else "",
        f"cpu {usage['cpu_seconds']:.2f} s" if usage["cpu_seconds"] is not None else "",
    ]
    source = f"({usage['source']})" if usage["source"] else ""
    figures = " ".join(filter(None, [", ".join(filter(None, counted)), source]))
    return "; ".join(filter(None, [figures, usage["reason"]]))


def describe_limits(limits: Mapping[str, Any], layers: Mapping[str, Any]) -> str:
    """The limits; one that this host doesn't enforce says so."""
    shown = []
    for name, value in limits.items():
        layer = layers.get(LAYERS.get(name, name))
        missing = " (not enforced)" if layer is not None and not layer["active"] else ""
        if value:
            shown.append(f"{name} {format_limit(name, value)}{missing}")
    return ", ".join(shown)


def format_requested(layer: str, value: object) -> str:
    """The requested value of a layer: ``yes``, ``no``, or an amount."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_limit({"pids": "max_pids", "cpu": "cpu_quota"}.get(layer, layer), value)


def format_limit(limit: str, value: Any) -> str:
    """Format the value of a limit."""
    if limit == "cpu_quota":
        return f"{value / 1000:g}%"  # microseconds per 100 ms
    return format_size(value) if limit in BYTE_LIMITS else str(value)


def format_size(value: int) -> str:
    """Format bytes: ``256M``, ``1.5G``, ``900K``."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + letter
    return f"{value}B"
