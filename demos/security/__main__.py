"""``python -m demos.security``: one hostile program, run without a jail and in one."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import PrintingClient
from demos.stage import notice, say

from .picture import Row, draw_table
from .targets import ORIGINAL_BASHRC, Targets, plant_targets

HERE = stage.HERE / "security"
TIMEOUT = 30.0  # seconds that a hostile program may take; it takes less than one
ROW = "{:<37}{:<21}{:<22}{}"
HEADER = ("ATTEMPT", "NOT ISOLATED", "ISOLATED", "STOPPED BY")

Reply = dict[str, Any]


@frozen
class Attempt:
    """One attempt: its name in the programs, its description, and the layer that stops it first.

    ``sure``: it succeeds on any host without a jail; otherwise stopping it in a jail would prove nothing.
    """

    name: str
    what: str
    layer: str
    sure: bool = True


ATTEMPTS = (
    Attempt("dns", "network: ask a name server", "net_ns"),
    Attempt("tcp", "network: connect to a TCP service", "net_ns"),
    Attempt("http", "network: carry a secret out by HTTP", "net_ns"),
    Attempt("route", "network: find a way to the Internet", "net_ns", sure=False),
    Attempt("unix", "network: use an abstract socket", "net_ns"),
    Attempt("shadow", "files: read /etc/shadow", "root", sure=False),
    Attempt("ssh", "files: read the user's SSH key", "root"),
    Attempt("bashrc", "files: add a command to ~/.bashrc", "root"),
    Attempt("processes", "secrets: see the host's processes", "pid_ns"),
    Attempt("environ", "secrets: API key in an environment", "pid_ns"),
    Attempt("memory", "secrets: API key in kernel's memory", "pid_ns", sure=False),
    Attempt("trace", "processes: trace another one", "seccomp", sure=False),
    Attempt("kill", "processes: kill another one", "pid_ns"),
    Attempt("namespace", "privileges: root in a user namespace", "seccomp", sure=False),
    Attempt("fork", "exhaustion: a fork bomb", "pids", sure=False),
)
LAYERS = {
    "net_ns": "network namespace",
    "root": "root of its own",
    "pid_ns": "PID namespace",
    "seccomp": "system call filter",
}


@frozen
class Tried:
    """An attempt's report by the hostile program, corrected by observations from outside."""

    done: bool
    detail: str


@frozen
class Result:
    """One setting: the result of each attempt, the isolation as reported by SPAWN, and observations from outside."""

    tried: Mapping[str, Tried]
    layers: Mapping[str, Mapping[str, Any]]
    seen: Sequence[str]


def security(brief: bool, picture: Path | None) -> None:
    stage.title("Security")
    say(
        "A hostile program tries fifteen things that no agent should be able to do: first in a jail, as every agent is "
        "started, then without one, which only the operator can ask for. Of /etc/shadow it only counts the bytes; all "
        "other targets were made for this demo, and nothing leaves this machine."
    )
    if not brief:
        stage.heading("In a jail: isolation standard, the default")
    isolated = run_hostile_program("isolated", {}, brief)
    if not brief:
        stage.heading('Without: isolation="none"')
    bare = run_hostile_program("bare", {"isolation": "none"}, brief)

    stage.heading("Side by side")
    rows = [describe_attempt(attempt, bare, isolated) for attempt in ATTEMPTS]
    click.secho(ROW.format(*HEADER), bold=True)
    for row in rows:
        click.echo(ROW.format(*row))
    if not brief:
        stage.heading("Seen from outside")
        for name, result in (("not isolated", bare), ("isolated", isolated)):
            for line in result.seen:
                click.echo(f"   {name:<14}{line}")
    verdict = judge(bare, isolated)
    if picture is not None:
        picture.write_text(draw_table(HEADER, rows, verdict))


# -- A hostile program -------------------------------------------------------------------------------------------------


Call = Callable[..., Any]  # of a method of the client, by its name


def run_hostile_program(name: str, isolation: Mapping[str, str], brief: bool) -> Result:
    """Create all targets and a kernel with a secret in its environment, and run the hostile program in it."""
    with plant_targets() as target, stage.kernel() as running, AgentOSClient(running.socket) as client:
        kernel: Call = partial(call_method, client) if brief else PrintingClient(client)
        targets = {
            "dns": target.services.dns.getsockname()[1],
            "tcp": target.services.tcp.getsockname()[1],
            "abstract": target.mark,
            "home": str(target.home),
            "victim": target.victim.pid,
            "kernel": running.process.pid,
        }
        spawned = start(kernel, f"{name}-intruder", "intruder.py", ready="hello", **isolation)
        client.send_message(targets, to_name=f"{name}-intruder")
        kernel("wait", f"{name}-intruder", timeout=TIMEOUT)
        said = reports(client, f"{name}-intruder", len(ATTEMPTS) - 1)

        start(kernel, f"{name}-bomb", "fork_bomb.py", args=[target.mark], **isolation)
        said |= reports(client, f"{name}-bomb", 1)
        most = count_processes(target.mark)
        kernel("kill", f"{name}-bomb", grace=0)
        end = kernel("wait", f"{name}-bomb", timeout=TIMEOUT)
        wait_until_gone(target.mark)
        running.stop()
        bomb = f"the fork bomb: {most} processes at most", f"the kernel reports: {end['reason']}"
        return Result(
            combine_observations(said, target, most), spawned["isolation"]["layers"], (*describe_effects(target), *bomb)
        )


def call_method(client: AgentOSClient, method: str, *args: object, **named: object) -> Any:
    return getattr(client, method)(*args, **named)


def start(kernel: Call, name: str, script: str, **more: object) -> Reply:
    reply: Reply = kernel("spawn", name, str(HERE / script), **more)
    if reply.get("code") == "isolation_unavailable":
        raise stage.DemoError(f"THIS HOST CAN'T ISOLATE, and nothing was started.\n{reply['error']}")
    stage.check(reply["success"], f"{name} starts")
    return reply


def reports(client: AgentOSClient, name: str, count: int) -> dict[str, Tried]:
    """Wait for ``count`` reports of an agent."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        lines = client.logs(name, tail=200)["lines"]
        said = [json.loads(line["text"]) for line in lines if line["stream"] == "stdout"]
        if len(said) == count:
            return {one["attempt"]: Tried(one["done"], one["detail"]) for one in said}
        time.sleep(0.05)
    raise stage.DemoError(f"{name} ended early: {[line['text'] for line in lines[-5:]]}")


def wait_until_gone(word: str) -> None:
    """Wait for the end of killed programs without a jail: it comes a little later."""
    deadline = time.monotonic() + TIMEOUT
    while count_processes(word):
        stage.check(time.monotonic() < deadline, "nothing is left of a fork bomb")
        time.sleep(0.05)


def count_processes(word: str) -> int:
    """How many processes on this machine have this word in their command line."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += word.encode() in (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    return found


# -- Results ----------------------------------------------------------------------------------------------------------


def combine_observations(said: Mapping[str, Tried], target: Targets, most: int) -> Mapping[str, Tried]:
    """The reports, where an attempt counts as done also if only its effect was observed."""
    seen = {
        **{service: service in target.services.heard for service in ("dns", "tcp", "http", "unix")},
        **{name: target.secret in said[name].detail for name in ("ssh", "environ", "memory")},
        "bashrc": target.startup != ORIGINAL_BASHRC,
        "kill": target.victim.poll() is not None,
    }
    tried = {name: Tried(one.done or seen.get(name, False), one.detail) for name, one in said.items()}
    return {**tried, "fork": Tried(said["fork"].done, str(most))}


def describe_effects(target: Targets) -> Sequence[str]:
    ended = target.victim.poll()
    return (
        f"services that were asked: {', '.join(sorted(target.services.heard)) or 'none'}",
        f"the process that was attacked: {'lives' if ended is None else f'killed by signal {-ended}'}",
        f"~/.bashrc: {'as it was' if target.startup == ORIGINAL_BASHRC else 'changed'}",
    )


def describe_attempt(attempt: Attempt, bare: Result, isolated: Result) -> Row:
    free, jailed = bare.tried[attempt.name], isolated.tried[attempt.name]
    by = "NOTHING" if jailed.done else stopped_by(isolated.layers, attempt.layer)
    return attempt.what, cell(attempt, free), cell(attempt, jailed), by


def cell(attempt: Attempt, tried: Tried) -> str:
    if attempt.name == "fork":
        return f"DONE: {tried.detail}" if tried.done else f"stopped at {tried.detail}"
    return "DONE" if tried.done else f"stopped: {tried.detail}"


def stopped_by(layers: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """The name of the layer that stopped it, if the layer is active."""
    layer = layers[name]
    if not layer["active"]:
        return f"not by {name}: {layer['reason']}"
    return LAYERS.get(name) or str(layer["mechanism"]).partition(" in ")[0]


def judge(bare: Result, isolated: Result) -> str:
    """Check that the jail stopped every attempt; decides the exit status. Returns the verdict."""
    held = [attempt for attempt in ATTEMPTS if not isolated.tried[attempt.name].done]
    free = [attempt for attempt in ATTEMPTS if bare.tried[attempt.name].done]
    click.echo()
    verdict = f"Of {len(ATTEMPTS)} attempts {len(free)} succeed without a jail, and {len(ATTEMPTS) - len(held)} in one."
    notice(verdict)
    if len(free) < len(ATTEMPTS):
        notice("Attempts that fail in both columns are ones that this machine doesn't allow its users anyway.")
    most = int(isolated.tried["fork"].detail)
    stage.check(most <= isolated.layers["pids"]["asked"], "a fork bomb stays within its limit, as counted outside")
    for attempt in ATTEMPTS:
        stage.check(attempt in held, f"a jail stops this: {attempt.what}")
        stage.check(isolated.layers[attempt.layer]["active"], f"{attempt.layer} is in force")
        stage.check(attempt in free or not attempt.sure, f"this succeeds without a jail: {attempt.what}")
    return verdict


parser = argparse.ArgumentParser(prog="agentos demo security", description=__doc__)
parser.add_argument("--brief", action="store_true", help="print the table alone")
parser.add_argument("--picture", type=Path, metavar="FILE", help="write the table as an SVG picture too")
options = parser.parse_args()
stage.run_demo(partial(security, options.brief, options.picture))
