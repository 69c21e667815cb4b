"""``python -m demos.pipeline``: five word problems through four processes, one of which is killed on the way."""

import os
import re
import signal

import click

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import shorten_paths
from demos.stage import Kernel, notice, say

FILE = stage.HERE / "pipeline" / "agentos.toml"
TIMEOUT = 60.0  # seconds for the whole demo; it takes about ten
REJECTED = re.compile(r"verifier \| question (\d+): .*WRONG")
ALL_RIGHT = re.compile(r"orchestrator \| (\d+) of \1 answers verified")


def pipeline() -> None:
    stage.title("A pipeline: parser -> reasoner -> verifier -> orchestrator")
    say(
        "Five questions in plain text go in, five verified answers come out. No language model is at work: the parser "
        "uses rules, the reasoner calculates, the verifier checks the answers by inverse operations. Each of the "
        "four is an agent, a process of its own, and they only exchange messages through the kernel: "
        "SEND and RECV."
    )
    stage.heading("The kernel starts the orchestrator, which spawns the others (about ten seconds)")
    click.secho(f"$ agentos run {shorten_paths(str(FILE))}", bold=True)
    with stage.kernel(FILE, show=True) as kernel, AgentOSClient(kernel.socket) as client:
        killed = watch(kernel, client)
        kernel.wait_for_line(r"kernel \| orchestrator: exit status 0", 10)
        notice("The orchestrator has ended, and before it the kernel ended the agents that it had spawned.")
        kernel.stop()

    stage.heading("What to notice")
    notice("Processes, not coroutines: kill -9 ended one, and the three others were not affected.")
    notice(
        f"The supervisor started the reasoner anew (pid {killed} was killed). The messages in its mailbox had "
        "waited in the kernel; only the one that it had taken was lost, and the orchestrator sent it again."
    )
    notice("The verifier caught a wrong answer: the reasoner's quick method ignores that * comes before +.")


def watch(kernel: Kernel, client: AgentOSClient) -> int:
    """Show the console up to the last answer and kill the reasoner on the way; returns the killed pid."""
    killed, rejected, resent = 0, False, False
    for line in kernel.lines(TIMEOUT):
        click.echo(line.text)
        if "reasoner | question 3: thinking" in line.plain and not killed:
            killed = kill_reasoner(client)
        if REJECTED.search(line.plain) and not rejected:
            rejected = True
            notice("The verifier sends it back, and the reasoner calculates it again, carefully.")
        if "orchestrator | no answer for" in line.plain and not resent:
            resent = True
            notice("The reasoner had taken this question when it was killed.")
        if ALL_RIGHT.search(line.plain):
            stage.check(killed > 0, "the reasoner is killed")
            stage.check(resent, "the lost question is sent again")
            stage.check(rejected, "one quick answer is rejected")
            return killed
        if "kernel | orchestrator: exit" in line.plain:
            break
    raise stage.DemoError("the orchestrator has ended before all answers were verified")


def kill_reasoner(client: AgentOSClient) -> int:
    pid: int = next(agent["pid"] for agent in client.list_agents() if agent["name"] == "reasoner")
    click.secho(f"$ kill -9 {pid}", bold=True)
    os.kill(pid, signal.SIGKILL)
    notice("The reasoner is killed in the middle of question 3.")
    return pid


stage.run_demo(pipeline)
