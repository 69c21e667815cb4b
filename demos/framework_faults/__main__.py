"""``python -m demos.framework_faults``: a framework's program misbehaves, run plainly and as an agent."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from agentos.presets import read_preset
from agentos_sdk import AgentOSClient
from demos import stage
from demos.stage import say

HERE = stage.HERE / "framework_faults"
TITLE = "A framework's program that misbehaves: run plainly, and as an agent"
HAS_PACKAGE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('agents') is None)"
WATCHED = 3.0  # seconds in which the share of a CPU is measured
MUCH_MEMORY, MANY_PROCESSES = 600 << 20, 100  # where the demo ends the plain program
ROW = "   {:<8}{}"


@frozen
class Fault:
    """What the program is asked for: what it does then, the limits of the agent, and who watches what becomes of it."""

    heading: str
    limits: Mapping[str, Any]
    watch_plain: "Callable[[Plain], str]"
    watch_agent: Callable[[AgentOSClient], str]


# -- Plainly -----------------------------------------------------------------------------------------------------------


class Plain:
    """The program as a process of the user's, which the demo ends before it harms the host."""

    def __init__(self, python: str, fault: str, env: Mapping[str, str]) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [python, str(HERE / "app.py"), fault],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def members(self) -> list[tuple[int, list[str]]]:
        """The processes of its session, each with the fields of its stat from the state on."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                    found.append((int(path.parent.name), fields))
        return found

    @property
    def memory(self) -> int:
        """Bytes of RAM."""
        return sum(int(fields[21]) for _, fields in self.members()) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        return sum(int(fields[11]) + int(fields[12]) for _, fields in self.members()) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid, _ in self.members():  # a child that was just being made
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def plainly(python: str, fault: str, env: Mapping[str, str]) -> Iterator[Plain]:
    program = Plain(python, fault, env)
    try:
        yield program
    finally:
        program.end()


def loop_plainly(program: Plain) -> str:
    stage.until(lambda: program.cpu_seconds > 2, "the plain program loops")
    before, began = program.cpu_seconds, time.monotonic()
    time.sleep(WATCHED)
    share = (program.cpu_seconds - before) / (time.monotonic() - began)
    return f"takes {share:.0%} of a CPU, until this demo kills it"


def leak_plainly(program: Plain) -> str:
    stage.until(lambda: program.memory > MUCH_MEMORY, "the plain program leaks")
    return f"has {program.memory >> 20} MiB when this demo kills it"


def fork_plainly(program: Plain) -> str:
    stage.until(lambda: len(program.members()) > MANY_PROCESSES, "the plain program forks")
    return f"has {len(program.members())} processes when this demo kills them"


def crash_plainly(program: Plain) -> str:
    status = program.process.wait(stage.PATIENCE)
    return f"ended by {signal.Signals(-status).name}, and stays away"


# -- As an agent -------------------------------------------------------------------------------------------------------


def start(client: AgentOSClient, python: str, fault: str) -> None:
    """As `agentos spawn --framework agents` does."""
    spawned = client.spawn(
        fault,
        str(HERE / "app.py"),
        args=[fault],
        python=python,
        env=read_preset("agents").environment(),
        limits=FAULTS[fault].limits,
        restart="permanent",
        max_restarts=100,
    )
    stage.check(spawned["success"], f"{fault} starts: {spawned.get('error')}")


def info(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in client.list_agents(all=True) if one["name"] == name)
    return found


def loop_as_agent(client: AgentOSClient) -> str:
    limit = client.inspect("loop")["isolation"]["layers"]["cpu"]
    if not limit["active"]:
        return f"not limited here: {limit['reason'].partition(':')[0]}"
    stage.until(lambda: info(client, "loop")["cpu_seconds"] > 2, "the agent loops")
    before, began = info(client, "loop")["cpu_seconds"], time.monotonic()
    time.sleep(WATCHED)
    share = (info(client, "loop")["cpu_seconds"] - before) / (time.monotonic() - began)
    stage.check(share < 0.4, "an agent that loops is throttled")
    return f"throttled: takes {share:.0%} of a CPU"


def leak_as_agent(client: AgentOSClient) -> str:
    stage.until(lambda: info(client, "leak")["restarts"], "an agent that leaks is killed and restarted")
    return f"restarted: {reason(client, 'leak')}"


def fork_as_agent(client: AgentOSClient) -> str:
    stage.until(lambda: info(client, "fork")["restarts"], "an agent that forks too often is ended and restarted")
    error = next(line for line in stage.said(client, "fork") if "no more helpers" in line)
    return f"held at {FAULTS['fork'].limits['max_pids']} processes and threads, and restarted: {error}"


def crash_as_agent(client: AgentOSClient) -> str:
    stage.until(lambda: info(client, "crash")["restarts"], "an agent that crashes is restarted")
    return f"restarted: {reason(client, 'crash')}"


def reason(client: AgentOSClient, name: str) -> str:
    """Why it was restarted, in the kernel's words."""
    return str(next(line["text"] for line in client.logs(name)["lines"] if line["stream"] == "kernel"))


FAULTS: Mapping[str, Fault] = {
    "loop": Fault("It loops", {"cpu_quota": "30%"}, loop_plainly, loop_as_agent),
    "leak": Fault("It leaks", {"memory": "300M"}, leak_plainly, leak_as_agent),
    "fork": Fault("It forks", {"max_pids": 40}, fork_plainly, fork_as_agent),
    "crash": Fault("It crashes", {}, crash_plainly, crash_as_agent),
}

# -- Side by side ------------------------------------------------------------------------------------------------------


def endpoint(client: AgentOSClient) -> Mapping[str, str]:
    """The environment of a plain program that asks the same model: by the endpoint of an agent without a jail."""
    client.spawn("endpoint", str(HERE / "endpoint.py"), sandboxed=False)
    stage.until(lambda: stage.said(client, "endpoint"), "the endpoint is there")
    url, key = stage.said(client, "endpoint")[0].split()
    return {**os.environ, **read_preset("agents").environment(), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}


def demo(python: str, chosen: Sequence[str]) -> None:
    say(
        f"A program of the OpenAI Agents SDK (demos/framework_faults/app.py) is asked to {', '.join(chosen)}, one "
        "after the other. The tool that it calls does so. Each runs as a process of yours first, then as an agent: "
        "`agentos spawn --framework agents app.py`."
    )
    with stage.kernel(HERE / "agentos.toml") as running, AgentOSClient(running.socket) as client:
        env = endpoint(client)
        for name in chosen:
            fault = FAULTS[name]
            stage.heading(fault.heading)
            with plainly(python, name, env) as program:
                show("plain", fault.watch_plain(program))
            start(client, python, name)
            show("agent", fault.watch_agent(client))
            client.kill(name)
        running.stop()


def show(how: str, seen: str) -> None:
    click.echo(stage.fill(seen, ROW.format(how, ""), ROW.format("", "")))


def main() -> None:
    parser = argparse.ArgumentParser(prog="agentos demo framework_faults", description=TITLE)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the package openai-agents")
    parser.add_argument("faults", nargs="*", default=list(FAULTS), help=f"of {', '.join(FAULTS)}; default: all")
    arguments = parser.parse_args()
    python: str = arguments.python
    if unknown := set(arguments.faults) - FAULTS.keys():
        parser.error(f"no fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")

    def run() -> None:
        stage.title(TITLE)
        if subprocess.run([python, "-c", HAS_PACKAGE], stderr=subprocess.DEVNULL).returncode != 0:
            raise stage.DemoError(f"{python} lacks the package openai-agents: pip install openai-agents, or --python")
        demo(python, arguments.faults)

    stage.run_demo(run)


main()
