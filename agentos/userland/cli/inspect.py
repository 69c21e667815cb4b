"""``agentos inspect``: shows everything about one agent, with each layer of its isolation."""

import shutil
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentos_sdk.quantities import duration

from .agents import questions, unavailable
from .common import checked, json_option, kernel, plain, plural, print_json, socket_option, table, target
from .doctor import NARROW, WIDE

SIZES = ("memory", "file_size", "disk", "tmp")
LIMITED = ("memory", "pids", "cpu", "disk")  # layers that are resource limits; the others separate the agent


@click.command()
@click.argument("name")
@click.option("-v", "--verbose", is_flag=True, help="Also the evidence that each wall stands.")
@json_option
@socket_option
def inspect(name: str, verbose: bool, socket_path: str | None, as_json: bool) -> None:
    """Show all that is known of the agent NAME (or with that id): what it is, what it uses, and its walls."""
    with kernel(socket_path) as client:
        found = checked(client.inspect(**target(name)))
    if as_json:
        print_json(found)
        return
    width = min(max(shutil.get_terminal_size((WIDE, 24)).columns, NARROW), WIDE)
    for line in described(found, width, verbose):
        click.echo(plain(line))


def described(found: Mapping[str, Any], width: int, verbose: bool) -> Iterator[str]:
    """The facts, then a table of the layers; ``verbose`` adds the evidence for active layers."""
    told = [(label, value) for label, value in facts(found) if value]
    indent = max(len(label) for label, _ in told) + 2
    for label, value in told:
        yield from beside(label.ljust(indent), value, width, break_long_words=False)  # so that paths can be copied
    layers = found["isolation"]["layers"]
    if not layers:
        return
    yield ""
    rows = [
        [
            name,
            asked(name, layer["asked"]),
            "yes" if layer["active"] else "no",
            layer["mechanism"] or "-",
            "; ".join(filter(None, [layer["evidence"] if verbose and layer["active"] else "", layer["reason"]])),
        ]
        for name, layer in layers.items()
    ]
    header = ["LAYER", "ASKED", "ACTIVE", "MECHANISM", "EVIDENCE, OR REASON" if verbose else "REASON"]
    indent = sum(max(len(row[column]) for row in [header, *rows]) + 2 for column in range(len(header) - 1))
    for line in table(rows, header):
        yield from beside(line[:indent], line[indent:], width, break_long_words=True)


def beside(head: str, text: str, width: int, break_long_words: bool) -> Iterator[str]:
    """A label, and a text wrapped to its right."""
    first, *more = textwrap.wrap(
        text, width - len(head), break_long_words=break_long_words, break_on_hyphens=False
    ) or [""]
    yield f"{head}{first}".rstrip()
    yield from (" " * len(head) + part for part in more)


def facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of label and value, one line each; the value is empty if there is nothing to show."""
    spec, end, pid = found["spec"], found["end"], found["pid"]
    yield "name", f"{found['name']} (id {found['id']})"
    yield "isolation", verdict(found["isolation"])
    restarted = f"restarted {plural(found['restarts'], 'time')}" if found["restarts"] else ""
    yield "state", ", ".join(filter(None, [found["state"], f"pid {pid}" if pid else "", restarted]))
    if found["since"] is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        yield "since", f"{since} ({duration(found['uptime_ms'] / 1000)})"
    yield "ended", end["reason"] if end is not None else ""
    yield "supervisor", f"{found['supervisor']}, {spec['restart']}"
    yield "parent", found["parent"]["name"] if found["parent"] is not None else ""
    yield "children", ", ".join(f"{child['name']} ({child['state']})" for child in found["children"])
    yield "runs", " ".join([spec["script"] or "", *(spec["command"] or []), *spec["args"]]).strip()
    yield "code", spec["code"] or ""
    yield "python", spec["python"] or ""
    yield "directory", spec["cwd"] or ""
    yield "variables", ", ".join(spec["env"])
    jailed = found["isolation"]["level"] != "none"
    yield "workspace", (spec["workspace"] or "a directory of the host's") if jailed else ""
    yield "user", f"{found['outer']['uid']}:{found['outer']['gid']} on the host" if found["outer"] is not None else ""
    for directory in found["cgroups"] or []:
        yield "cgroup", directory
    yield "limits", ", ".join(f"{name} {amount(name, value)}" for name, value in found["limits"].items() if value)
    yield "uses", used(found["usage"])
    model = found["llm"]
    yield (
        "model",
        ", ".join(filter(None, [questions(model["place"]), had(model["spent"]), waited(model), weighed(model)])),
    )
    for state in model["providers"]:
        yield "waits for", unavailable(state)
    for budget in model["budgets"]:
        yield "budget", left(budget)


def had(spent: Mapping[str, Any]) -> str:
    """The agent's use of the model since the kernel started."""
    if not spent["calls"]:
        return ""
    generated = spent["output"] + spent["thinking"]
    return f"{plural(spent['calls'], 'question')} asked, {spent['input']} tokens in, {generated} out"


def waited(model: Mapping[str, Any]) -> str:
    waits = model["waits"]
    return f"waited {waits['p50_ms']:.0f} ms (p50), {waits['p95_ms']:.0f} ms (p95)" if waits else ""


def weighed(model: Mapping[str, Any]) -> str:
    return f"weight {model['weight']:g}" if model["weight"] != 1 else ""


def left(budget: Mapping[str, Any]) -> str:
    """How much of a budget is used, and when it renews."""
    renewed = duration(max(0.0, budget["renews_at"] - time.time()))
    reserved = f" and {budget['reserved']:g} reserved" if budget["reserved"] else ""
    said = f"{budget['used']:g}{reserved} of {budget['most']:g} {budget['what']} per {duration(budget['per'])}"
    return f"{said}, of {budget['name']}; renews in {renewed}"


def verdict(isolation: Mapping[str, Any]) -> str:
    """The isolation in one line: ``standard: all walls stand; cpu not limited: no cgroup delegated``."""
    level, layers = isolation["level"], isolation["layers"]
    if level == "none":
        return "none: no walls"
    if not layers:
        return f"{level}: not started yet"
    missing = {name: layer["reason"] for name, layer in layers.items() if layer["asked"] and not layer["active"]}
    walls = [f"{name} doesn't stand: {reason}" for name, reason in missing.items() if name not in LIMITED]
    limits = [f"{name} not limited: {reason}" for name, reason in missing.items() if name in LIMITED]
    return f"{level}: " + "; ".join([*(walls or ["all walls stand"]), *(limits or ["all limits hold"])])


def used(usage: Mapping[str, Any]) -> str:
    """The resources in use, the source of the figures, and why some are missing."""
    counted = [
        f"memory {size(usage['memory'])}" if usage["memory"] is not None else "",
        f"peak {size(usage['peak'])}" if usage["peak"] is not None else "",
        f"pids {usage['pids']}" if usage["pids"] is not None else "",
        f"cpu {usage['cpu_seconds']:.2f} s" if usage["cpu_seconds"] is not None else "",
    ]
    source = f"({usage['source']})" if usage["source"] else ""
    return " ".join(filter(None, [", ".join(filter(None, counted)), source, usage["reason"]]))


def asked(layer: str, value: object) -> str:
    """The requested value of a layer: ``yes``, ``no``, or an amount."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return amount({"pids": "max_pids", "cpu": "cpu_quota"}.get(layer, layer), value)


def amount(limit: str, value: Any) -> str:
    """Format the value of a limit."""
    if limit == "cpu_quota":
        return f"{value / 1000:g}%"  # microseconds per 100 ms
    return size(value) if limit in SIZES else str(value)


def size(value: int) -> str:
    """Format bytes: ``256M``, ``1.5G``, ``900K``."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + letter
    return f"{value}B"
