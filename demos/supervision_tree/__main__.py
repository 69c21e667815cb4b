"""``python -m demos.supervision_tree``: a tree from a file, and nine seconds of crashes and restarts."""

import re
from collections.abc import Mapping
from typing import Any

import click
from attrs import define, field

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import shorten_paths
from demos.stage import Kernel, notice, say

FILE = stage.HERE / "supervision_tree" / "agentos.toml"
RESTARTS = 3  # of unstable, that are watched
TIMEOUT = 120.0  # seconds for the whole demo; it takes about nine
ROUND = re.compile(r"ping \| sent (\d+), pong answered (\d+)")
DELAY = re.compile(r"unstable: will be restarted in ([\d.]+) s")
REMARKS: Mapping[str, str] = {
    r"ping \| sent 2,": "ping and pong are two processes. Every message between them goes through the kernel.",
    r"unstable: will be restarted in 0.2": "unstable crashed. Its supervisor waits 0.2 s, then starts it again.",
    r"hopeless: exit status": "hopeless crashed. Its backoff is 0, so its supervisor starts it again at once.",
    r"given up": "3 restarts in 10 s are forgiven, a 4th is not: hopeless is given up. The others go on without it.",
    r"unstable: will be restarted in 0.8": "unstable again: 0.2, 0.4, 0.8 s. Repeated failures wait longer.",
}


@define
class Watch:
    """What the kernel's console has shown so far."""

    announced: list[float] = field(factory=list)  # delays that the kernel announced for unstable, seconds
    waited: list[float] = field(factory=list)  # delays that were measured, seconds
    rounds: list[tuple[int, int]] = field(factory=list)  # pings sent, and pongs received
    given_up: bool = False
    remarks: dict[str, str] = field(factory=lambda: dict(REMARKS))
    _since: float = 0.0

    @property
    def complete(self) -> bool:
        return self.given_up and len(self.waited) >= RESTARTS

    def see(self, line: stage.ConsoleLine) -> None:
        if delay := DELAY.search(line.plain):
            self.announced.append(float(delay[1]))
            self._since = line.at
        elif "unstable: running" in line.plain and self._since:
            self.waited.append(line.at - self._since)
        elif counts := ROUND.search(line.plain):
            self.rounds.append((int(counts[1]), int(counts[2])))
        self.given_up |= "hopeless: given up" in line.plain

    def remark(self, line: stage.ConsoleLine) -> str | None:
        """The remark after this line; each is made once."""
        found = next((pattern for pattern in self.remarks if re.search(pattern, line.plain)), None)
        return self.remarks.pop(found) if found else None


def supervision_tree() -> None:
    stage.title("A supervision tree")
    say(
        f"The file {shorten_paths(str(FILE))} describes which agents run below which supervisors. "
        "The kernel starts it all; each agent is a process. This takes about nine seconds."
    )
    stage.heading("The kernel starts the tree (lines with a time are its own console)")
    click.secho(f"$ agentos run {shorten_paths(str(FILE))}", bold=True)
    with stage.kernel(FILE, show=True) as kernel, AgentOSClient(kernel.socket) as client:
        stage.heading("The supervision tree")
        stage.agentos(kernel.socket, "tree")
        notice("Four agents below three supervisors. Agents that are started by hand would appear under 'spawned'.")
        before = agents(client)

        stage.heading("Watch them live")
        watch = watch_live(kernel)

        stage.heading("What is left")
        after = agents(client)
        stage.agentos(kernel.socket, "ps", "--all")
        stage.agentos(kernel.socket, "tree")
        check_unharmed(before, after)

        stage.heading("The kernel is told to stop (SIGTERM, or Ctrl-C in a terminal)")
        kernel.stop(show=True)
        notice("Independent agents stop at the same time; exit status 0, and no process is left behind.")

    summary(watch, after)


def watch_live(kernel: Kernel) -> Watch:
    """Show the console with remarks until all expected events have happened."""
    watch = Watch()
    for line in kernel.lines(TIMEOUT):
        click.echo(line.text)
        watch.see(line)
        if remark := watch.remark(line):
            notice(remark)
        if watch.complete:
            return watch
    raise stage.DemoError("the kernel has ended")


def agents(client: AgentOSClient) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in client.list_agents(all=True)}


def check_unharmed(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in ("ping", "pong"):
        stage.check(before[name]["pid"] == after[name]["pid"], f"{name} lives on while others crash")
    stage.check(after["hopeless"]["state"] == "failed", "hopeless is given up")
    stage.check(after["unstable"]["state"] == "running", "unstable is back")
    notice(
        "hopeless has failed for good, and stays in the tree; unstable is back, in its life number "
        f"{after['unstable']['restarts'] + 1}; ping and pong are still the same processes."
    )


def summary(watch: Watch, after: dict[str, Any]) -> None:
    stage.heading("What you saw")
    stage.check(
        all(later > sooner * 1.5 for sooner, later in zip(watch.announced, watch.announced[1:], strict=False)),
        "the delays grow",
    )
    stage.check(
        watch.rounds == [(number, number) for number, _ in enumerate(watch.rounds, watch.rounds[0][0])],
        "every ping is answered",
    )
    click.echo("   unstable     announced   " + "".join(f"{delay:7.1f} s" for delay in watch.announced))
    click.echo("                waited      " + "".join(f"{delay:7.2f} s" for delay in watch.waited))
    click.echo(f"   hopeless     given up after {after['hopeless']['restarts']} restarts")
    click.echo(f"   ping, pong   0 restarts, {watch.rounds[-1][0]} pings and as many answers")


stage.run_demo(supervision_tree)
