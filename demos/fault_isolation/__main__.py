"""``python -m demos.fault_isolation``: a CPU hog, a memory hog, a crasher, and an agent that feels nothing of them."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from attrs import frozen

from agentos_sdk import AgentOSClient
from demos import stage
from demos.stage import Speaker, notice, say

HERE = stage.HERE / "fault_isolation"
FILE = HERE / "agentos.toml"
SCRIPTS = {"healthy": "healthy.py", "cpu-hog": "cpu_hog.py", "mem-hog": "memory_hog.py", "crasher": "crasher.py"}
BEATS = 100  # that are looked at before, and then at least: 5 s
CRASHES = 2  # that are watched, at least
PATIENCE = 45.0  # seconds that one part of the story may take; the longest takes about six
TAIL = 2000  # lines: all that the kernel keeps of an agent
BEAT = re.compile(r"beat (\d+) late by ([\d.]+) ms")
SHARE = re.compile(r"got ([\d.]+)% of a CPU")
ROW = "   {:<10}{:<12}"

Reply = dict[str, Any]


@frozen
class Row:
    """What became of an agent: ``status`` in a word, and what the kernel ``did``."""

    agent: str
    status: str
    did: str


def fault_isolation() -> None:
    stage.title("Fault isolation")
    say(
        "One agent beats like a heart, every 50 ms. Then three others misbehave: an endless loop that may have 10 % of "
        "a CPU, a leak that may have 50 MB, and one that crashes again and again. This takes about twelve seconds."
    )
    with stage.kernel(FILE) as running, AgentOSClient(running.socket) as client:
        kernel = Speaker(client)
        stage.act("A healthy agent, alone")
        healthy = start(kernel, "healthy")
        before = beats_from(client, 1, lambda: True)
        click.echo(f"    {len(before)} beats")

        stage.act("Three that misbehave")
        hog = start(kernel, "cpu-hog", limits={"cpu_quota": "10%"})
        tell(hog, "cpu")
        leak = start(kernel, "mem-hog", limits={"memory": "50M"})
        tell(leak, "memory")
        start(kernel, "crasher", restart="permanent", max_restarts=100)
        begin = len(lines_of(client, "healthy")) + 1
        during = beats_from(client, begin, lambda: has_happened(client))

        stage.act("What the kernel says of them")
        kernel("kill", "cpu-hog")
        table = [cpu_row(kernel, hog), memory_row(kernel, leak), crash_row(client), healthy_row(client, healthy)]
        running.stop()
    stage.act("What became of them")
    show(table)
    stage.act("What the healthy agent felt: how late its beats were")
    jitter({"before": before, "with the hogs": during})
    moral(hog)


def start(kernel: Speaker, name: str, **more: object) -> Reply:
    """Spawn an agent in its jail; where the host can't give it one, that is the end of the demo."""
    reply: Reply = kernel("spawn", name, str(HERE / SCRIPTS[name]), **more)
    if reply.get("code") == "isolation_unavailable":
        raise stage.StageError(f"THIS HOST CAN'T ISOLATE, and nothing is started without it.\n{reply['error']}")
    stage.check(reply["success"], f"{name} starts")
    return reply


def tell(spawned: Reply, name: str) -> None:
    """What the kernel has read back of a limit, or why there is none."""
    layer = spawned["isolation"]["layers"][name]
    state = f"active: {layer['evidence']}" if layer["active"] else f"not active: {layer['reason']}"
    click.echo(stage.fill(f"isolation, layer {name}: {state}", "    ", "      "))


# -- What the agents wrote ---------------------------------------------------------------------------------------------


def lines_of(client: AgentOSClient, name: str, stream: str = "stdout") -> Sequence[str]:
    return [line["text"] for line in client.logs(name, tail=TAIL)["lines"] if line["stream"] == stream]


def beats_from(client: AgentOSClient, first: int, enough: Callable[[], bool]) -> Sequence[float]:
    """Milliseconds that beats were late, from number ``first`` on: ``BEATS`` of them, or more until it is enough."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = [BEAT.fullmatch(line) for line in lines_of(client, "healthy")]
        beats = {int(beat[1]): float(beat[2]) for beat in found if beat is not None}
        late = [beats[number] for number in sorted(beats) if number >= first]
        if len(late) >= BEATS and enough():
            stage.check(list(beats) == list(range(1, len(beats) + 1)), "no beat is left out")
            return late
        time.sleep(0.1)
    raise stage.StageError(f"what should come next did not come within {PATIENCE:g} s")


def has_happened(client: AgentOSClient) -> bool:
    """All that there is to be seen: the leak has an end, the crasher came back, the other hog spoke a few times."""
    agents = by_name(client)
    return (
        not agents["mem-hog"]["running"]
        and agents["crasher"]["restarts"] >= CRASHES
        and len(lines_of(client, "cpu-hog")) >= 3
    )


def by_name(client: AgentOSClient) -> Mapping[str, Reply]:
    return {agent["name"]: agent for agent in client.list_agents(all=True)}


# -- What the kernel did -----------------------------------------------------------------------------------------------


def cpu_row(kernel: Speaker, spawned: Reply) -> Row:
    """It was throttled by what SPAWN says is in force on it; or nothing is, and the kernel says so."""
    layer = spawned["isolation"]["layers"]["cpu"]
    end = kernel("wait", "cpu-hog", timeout=PATIENCE)
    share = float(SHARE.findall("\n".join(lines_of(kernel.client, "cpu-hog")))[-1])
    if not layer["active"]:
        why = layer["reason"].partition(":")[0]
        return Row("cpu-hog", "RUNNING", f"not limited: {why}; it got {share:.0f} % of a CPU, and was killed by us")
    throttled = re.search(r"throttled \d+ % of the time", end["reason"])
    stage.check(throttled is not None and share < 50, "a CPU hog is throttled where that can be had")
    assert throttled is not None
    return Row("cpu-hog", "THROTTLED", f"10 % of a CPU by {layer['mechanism']}; it got {share:.1f} %: {throttled[0]}")


def memory_row(kernel: Speaker, spawned: Reply) -> Row:
    layer = spawned["isolation"]["layers"]["memory"]
    end = kernel("wait", "mem-hog", timeout=PATIENCE)
    stage.check(end["signal"] == 9 and "memory limit 50M reached" in end["reason"], "a memory hog is killed at 50 MB")
    return Row("mem-hog", "KILLED", f"{end['reason'].removeprefix('killed: ')}, by {layer['mechanism']}")


def crash_row(client: AgentOSClient) -> Row:
    agent = by_name(client)["crasher"]
    ends = [line for line in lines_of(client, "crasher", "kernel") if "SIGSEGV" in line]
    stage.check(agent["restarts"] >= CRASHES and len(ends) >= CRASHES, "an agent that crashes is restarted")
    return Row("crasher", "RESTARTED", f"{agent['restarts']} times, after SIGSEGV each; state now: {agent['state']}")


def healthy_row(client: AgentOSClient, spawned: Reply) -> Row:
    agent = by_name(client)["healthy"]
    stage.check(agent["running"] and agent["pid"] == spawned["pid"] and agent["restarts"] == 0, "healthy lives on")
    return Row("healthy", agent["state"].upper(), f"nothing: process {agent['pid']} as at first, 0 restarts")


# -- The tables --------------------------------------------------------------------------------------------------------


def show(table: Sequence[Row]) -> None:
    click.secho(ROW.format("AGENT", "STATUS") + "WHAT THE KERNEL DID", bold=True)
    indent = " " * len(ROW.format("", ""))
    for row in table:
        click.echo(stage.fill(row.did, ROW.format(row.agent, row.status), indent))


def jitter(phases: Mapping[str, Sequence[float]]) -> None:
    click.secho(f"   {'':<14}{'beats':>7}{'p50':>10}{'p99':>10}{'max':>10}", bold=True)
    for name, late in phases.items():
        numbers = "".join(f"{value:7.2f} ms" for value in (percentile(late, 50), percentile(late, 99), max(late)))
        click.echo(f"   {name:<14}{len(late):>7}{numbers}")


def moral(hog: Reply) -> None:
    """What may be said of it where CPU time is limited, and where it isn't."""
    click.echo()
    if hog["isolation"]["layers"]["cpu"]["active"]:
        notice("Each agent has a process, a jail and limits of its own: what one does to itself, no other has to feel.")
    else:
        notice(
            "A leak or a crash affects no other agent. A loop does: without a control group nothing limits CPU time "
            "here, and the others share it with the hog. `agentos doctor` says what to change."
        )


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred don't exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


stage.play(fault_isolation)
