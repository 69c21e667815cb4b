"""``python -m demos.llm_contention``: five agents and one model; then a flooder; then the same without the kernel."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import click

from agentos_sdk import AgentOSClient
from demos import stage
from demos.llm_contention.figures import Result, Results, Summary, fairness, rows
from demos.stage import notice, say

HERE = stage.HERE / "llm_contention"
FILE, ASKER = HERE / "agentos.toml", str(HERE / "asker.py")
FIVE = ("ada", "bert", "cleo", "dora", "emil")
FLOODER = "flooder"
THINGS = ("moss", "rain", "salt", "rust", "wool", "dusk", "clay", "foam")
NOTES = "These are my notes so far, all of them, for I have not sorted out which of them matter: " * 4
TIMEOUT = 60.0  # seconds that one round may take; the longest takes three
COLUMNS = ("agent", "requests", "success", "mean latency", "of it waiting", "tokens")

Task = dict[str, Any]


def small(count: int) -> Task:
    """Short questions, each when the one before is answered."""
    return {"questions": [f"In one sentence: what is {thing}?" for thing in THINGS[:count]], "at_once": False}


def flood() -> Task:
    """Long questions, all at once."""
    return {"questions": [f"Tell me everything about {thing}. {NOTES}" for thing in 2 * THINGS], "at_once": True}


def contention() -> None:
    stage.title("Five agents, one model")
    say(
        "The model is simulated: no key, no network, one question at a time. It takes 10 ms, 0.1 ms more for each "
        "token of the question and 1 ms for each of the answer. This takes about twelve seconds."
    )
    with stage.kernel(FILE) as running, AgentOSClient(running.socket) as client:
        client.register_name("narrator")
        stage.heading("Five agents ask three questions each, at the same time")
        alone = ask_through_kernel(client, dict.fromkeys(FIVE, small(3)))
        show(alone)
        stage.heading("Again, eight questions each, and a sixth asks sixteen long ones at once")
        flooded = dict.fromkeys(FIVE, small(8)) | {FLOODER: flood()}
        ours = ask_through_kernel(client, flooded, watch=True)
        show(ours)
        running.stop()

    stage.heading("The same without the kernel")
    say(
        "The same six programs ask the same simulated model over HTTP. First the model refuses requests while it is "
        "busy (429), and each program tries five times, as programs do. Then it has one queue for all of them, first "
        "come, first served."
    )
    with provider() as url:
        direct = ask_directly(f"{url}/turn-away", flooded)
        plain = ask_directly(f"{url}/queue", flooded)
    ways = {"direct": direct, "one queue": plain, "the kernel": ours}
    compare({way: Summary.of(results, FLOODER) for way, results in ways.items()})


def show(results: Results) -> None:
    table(COLUMNS, rows(results))
    click.echo(f"\n    fairness (Jain's index over tokens, while all of them had questions): {fairness(results):.2f}")
    stage.check(all(result.answered for own in results.values() for result in own), "every question is answered")


def compare(ways: Mapping[str, Summary]) -> None:
    lines = [
        (
            way,
            f"{found.failed} of {found.asked}",
            str(found.refused),
            f"{found.light_mean:.3f} s",
            f"{found.light_longest:.3f} s",
            f"{found.all_done:.1f} s",
            f"{found.fairness:.2f}",
        )
        for way, found in ways.items()
    ]
    table(("way", "failed", "429s", "the five wait", "at most", "all done in", "fairness"), lines)
    direct, plain, ours = (ways[way] for way in ("direct", "one queue", "the kernel"))
    stage.check(ours.failed == 0, "through the kernel no question fails")
    stage.check(direct.refused > 0, "a busy provider refuses programs")
    stage.check(ours.fairness > max(plain.fairness, direct.fairness), "the kernel is the fairest way")

    stage.heading("What to notice")
    notice(
        f"Directly, {direct.failed} of {direct.asked} questions failed, after {direct.refused} refusals in all: it "
        "depends on chance which programs give up."
    )
    notice(
        f"In one queue nothing fails, but the flooder's sixteen questions are ahead of all others: one of the five "
        f"waited {plain.light_longest:.1f} s for a sentence. In the kernel's queue, at most {ours.light_longest:.2f} s."
    )
    notice(
        "The kernel counts tokens, not questions: the agent that was served the fewest is next. So the flooder's long "
        "questions are served between the short ones of the others, with equal tokens for each agent, and the rest "
        "afterwards. The flooder loses nothing: all its questions are done as soon as in one queue."
    )


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    every = [columns, *lines]
    widths = [max(len(line[place]) for line in every) for place in range(len(columns))]
    click.echo()
    for number, line in enumerate(every):
        first, *rest = (
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        click.secho("    " + "   ".join((first, *rest)), bold=number == 0)


# -- Agents, through the kernel ----------------------------------------------------------------------------------------


def ask_through_kernel(client: AgentOSClient, tasks: Mapping[str, Task], watch: bool = False) -> Results:
    """Spawn an agent for each task, send the tasks when all have started, and receive their results."""
    for name in tasks:
        spawned = client.spawn(name, ASKER)
        stage.check(spawned["success"], f"{name} starts: {spawned.get('error')}")
    receive_results(client, len(tasks))
    for name, task in tasks.items():
        client.send_message(task, to_name=name)
    if watch:
        show_queue(client)
    results = receive_results(client, len(tasks))
    for name in tasks:
        client.wait(name, timeout=TIMEOUT)
    return {name: [Result.read(result) for result in results[name]] for name in tasks}


def receive_results(client: AgentOSClient, count: int) -> dict[str, Any]:
    """The next message of each of so many agents."""
    got: dict[str, Any] = {}
    while len(got) < count:
        came = client.recv_messages(timeout=TIMEOUT)["messages"]
        stage.check(bool(came), "every agent sends its result")
        got |= {message["from_name"]: message["message"] for message in came}
    return got


def show_queue(client: AgentOSClient) -> None:
    """Position of each program in the queue once the flooder has queued."""
    while True:
        agents = {agent["name"]: agent["llm"] for agent in client.list_agents() if agent["running"]}
        if FLOODER not in agents or agents[FLOODER]["waiting"] > len(FIVE):
            break
        time.sleep(0.01)
    say("A moment later, in the queue:")
    for name, place in agents.items():
        turn = "" if place["position"] is None else f", the first of them is number {place['position']} in the queue"
        answered = ", one is being answered" if place["in_flight"] else ""
        click.echo(f"    {name:<8} {place['waiting']:>2} waiting{turn}{answered}")


# -- Programs, without it ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def provider() -> Iterator[str]:
    """The simulated model behind HTTP; its URL."""
    command = [sys.executable, "-m", "demos.llm_contention.provider", str(FILE)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=HERE.parent.parent, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def ask_directly(url: str, tasks: Mapping[str, Task]) -> Results:
    """Start a program for each task, send the tasks when all have started, and read their results."""
    with contextlib.ExitStack() as stack:
        programs = {name: stack.enter_context(start_program(url)) for name in tasks}
        for program in programs.values():
            stage.check(out(program).readline() == "ready\n", "every program starts")
        for name, program in programs.items():
            assert program.stdin is not None
            program.stdin.write(json.dumps(tasks[name]) + "\n")
            program.stdin.close()
        results = {name: json.loads(out(program).readline()) for name, program in programs.items()}
    return {name: [Result.read(result) for result in results[name]] for name in tasks}


@contextlib.contextmanager
def start_program(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, ASKER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


stage.run_demo(contention)
