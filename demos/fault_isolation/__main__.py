"""``python -m demos.fault_isolation``: a CPU hog, a memory hog, a crasher, and an agent that isn't affected."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from attrs import frozen

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import PrintingClient
from demos.stage import notice, say

HERE = stage.HERE / "fault_isolation"
FILE = HERE / "agentos.toml"
SCRIPTS = {"healthy": "healthy.py", "cpu-hog": "cpu_hog.py", "mem-hog": "memory_hog.py", "crasher": "crasher.py"}
BEATS = 100  # beats measured before, and at least as many afterwards: 5 s
CRASHES = 2  # watched, at least
TIMEOUT = 120.0  # seconds for one part of the demo; the longest takes about six
TAIL = 2000  # lines: all that the kernel keeps of an agent
BEAT = re.compile(r"beat (\d+) late by ([\d.]+) ms")
SHARE = re.compile(r"got ([\d.]+)% of a CPU")
ROW = "   {:<10}{:<12}"

Reply = dict[str, Any]


@frozen
class Row:
    """The result for an agent: its ``status``, and what the kernel ``did``."""

    agent: str
    status: str
    did: str


def fault_isolation() -> None:
    stage.title("Fault isolation")
    say(
        "One agent prints a beat every 50 ms. Then three others misbehave: an endless loop that may have 10 % of "
        "a CPU, a leak that may have 50 MB, and one that crashes again and again. This takes about twelve seconds."
    )
    with stage.kernel(FILE) as running, AgentOSClient(running.socket) as client:
        kernel = PrintingClient(client)
        stage.heading("A healthy agent, alone")
        healthy = start(kernel, "healthy")
        before = wait_for_beats(client, 1, lambda: True)
        click.echo(f"    {len(before)} beats")

        stage.heading("Three agents that misbehave")
        hog = start(kernel, "cpu-hog", limits={"cpu_quota": "10%"})
        print_layer(hog, "cpu")
        leak = start(kernel, "mem-hog", limits={"memory": "50M"})
        print_layer(leak, "memory")
        start(kernel, "crasher", restart="permanent", max_restarts=100)
        begin = len(read_lines(client, "healthy")) + 1
        during = wait_for_beats(client, begin, lambda: is_complete(client))

        stage.heading("What the kernel reports")
        kernel("kill", "cpu-hog")
        table = [cpu_row(kernel, hog), memory_row(kernel, leak), crash_row(client), healthy_row(client, healthy)]
        running.stop()
    stage.heading("Results")
    show(table)
    stage.heading("The healthy agent: how late its beats were")
    jitter({"before": before, "with the hogs": during})
    explain_result(hog)


def start(kernel: PrintingClient, name: str, **more: object) -> Reply:
    """Spawn an agent in its jail; a host without isolation ends the demo."""
    reply: Reply = kernel("spawn", name, str(HERE / SCRIPTS[name]), **more)
    if reply.get("code") == "isolation_unavailable":
        raise stage.DemoError(f"THIS HOST CAN'T ISOLATE, and nothing is started without it.\n{reply['error']}")
    stage.check(reply["success"], f"{name} starts")
    return reply


def print_layer(spawned: Reply, name: str) -> None:
    """Print the evidence of a limit, or why it isn't in force."""
    layer = spawned["isolation"]["layers"][name]
    state = f"active: {layer['evidence']}" if layer["active"] else f"not active: {layer['reason']}"
    click.echo(stage.fill(f"isolation, layer {name}: {state}", "    ", "      "))


# -- What the agents wrote ---------------------------------------------------------------------------------------------


def read_lines(client: AgentOSClient, name: str, stream: str = "stdout") -> Sequence[str]:
    return [line["text"] for line in client.logs(name, tail=TAIL)["lines"] if line["stream"] == stream]


def wait_for_beats(client: AgentOSClient, first: int, enough: Callable[[], bool]) -> Sequence[float]:
    """Milliseconds that beats were late, from number ``first`` on: ``BEATS`` of them, or more until it is enough."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        found = [BEAT.fullmatch(line) for line in read_lines(client, "healthy")]
        beats = {int(beat[1]): float(beat[2]) for beat in found if beat is not None}
        late = [beats[number] for number in sorted(beats) if number >= first]
        if len(late) >= BEATS and enough():
            stage.check(list(beats) == list(range(min(beats), max(beats) + 1)), "no beat is left out")
            return late
        time.sleep(0.1)
    raise stage.DemoError(f"the expected output did not come within {TIMEOUT:g} s")


def is_complete(client: AgentOSClient) -> bool:
    """Whether the memory hog has ended, the crasher was restarted, and the CPU hog has reported three times."""
    agents = list_by_name(client)
    return (
        not agents["mem-hog"]["running"]
        and agents["crasher"]["restarts"] >= CRASHES
        and len(read_lines(client, "cpu-hog")) >= 3
    )


def list_by_name(client: AgentOSClient) -> Mapping[str, Reply]:
    return {agent["name"]: agent for agent in client.list_agents(all=True)}


# -- What the kernel did -----------------------------------------------------------------------------------------------


def cpu_row(kernel: PrintingClient, spawned: Reply) -> Row:
    """Check that the CPU hog was throttled, if a CPU limit is in force."""
    layer = spawned["isolation"]["layers"]["cpu"]
    end = kernel("wait", "cpu-hog", timeout=TIMEOUT)
    share = float(SHARE.findall("\n".join(read_lines(kernel.client, "cpu-hog")))[-1])
    if not layer["active"]:
        why = layer["reason"].partition(":")[0]
        return Row("cpu-hog", "RUNNING", f"not limited: {why}; it got {share:.0f} % of a CPU, and was killed by us")
    throttled = re.search(r"throttled \d+ % of the time", end["reason"])
    stage.check(throttled is not None and share < 50, "a CPU hog is throttled where that can be had")
    assert throttled is not None
    return Row("cpu-hog", "THROTTLED", f"10 % of a CPU by {layer['mechanism']}; it got {share:.1f} %: {throttled[0]}")


def memory_row(kernel: PrintingClient, spawned: Reply) -> Row:
    layer = spawned["isolation"]["layers"]["memory"]
    end = kernel("wait", "mem-hog", timeout=TIMEOUT)
    stage.check(end["signal"] == 9 and "memory limit 50M reached" in end["reason"], "a memory hog is killed at 50 MB")
    return Row("mem-hog", "KILLED", f"{end['reason'].removeprefix('killed: ')}, by {layer['mechanism']}")


def crash_row(client: AgentOSClient) -> Row:
    agent = list_by_name(client)["crasher"]
    ends = [line for line in read_lines(client, "crasher", "kernel") if "SIGSEGV" in line]
    stage.check(agent["restarts"] >= CRASHES and len(ends) >= CRASHES, "an agent that crashes is restarted")
    return Row("crasher", "RESTARTED", f"{agent['restarts']} times, after SIGSEGV each; state now: {agent['state']}")


def healthy_row(client: AgentOSClient, spawned: Reply) -> Row:
    agent = list_by_name(client)["healthy"]
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


def explain_result(hog: Reply) -> None:
    """Print the conclusion for a host that limits CPU time, or for one that doesn't."""
    click.echo()
    if hog["isolation"]["layers"]["cpu"]["active"]:
        notice("Each agent has a process, a jail and limits of its own: a failure of one affects no other.")
    else:
        notice(
            "A leak or a crash affects no other agent. A loop does: without a control group nothing limits CPU time "
            "here, and the others share it with the hog. `agentos doctor` says what to change."
        )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least ``percent`` % of the values don't exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


stage.run_demo(fault_isolation)
