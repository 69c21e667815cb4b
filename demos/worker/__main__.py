"""``python -m demos.worker``: three workers share nine jobs; an idle worker gets the next."""

from collections import Counter
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import open_printing_client

WORKER = str(stage.HERE / "worker" / "worker.py")
NAMES = ("worker-1", "worker-2", "worker-3")
KNOWN = {10**exponent: count for exponent, count in enumerate((4, 25, 168, 1229, 9592, 78498, 664579), 1)}
JOBS = (*KNOWN, 2_000_000, 5_000_000)


def worker(socket: str) -> None:
    with open_printing_client(socket) as kernel:
        stage.heading("Three workers are spawned from one script")
        jails = {}
        for name in NAMES:
            spawned = kernel("spawn", name, WORKER, restart="permanent")
            stage.check(spawned["success"], f"{name} starts")
            jails[name] = spawned["isolation"]["layers"]["pid_ns"]["evidence"]

        stage.heading(
            f"{len(JOBS)} jobs: how many primes are there below ...? A worker that has answered gets the next one"
        )
        results = deal(kernel.client, list(JOBS))
        stage.check({result["below"] for _, result in results} == set(JOBS), "every job is done once")
        for name, result in results:
            stage.check(result["jail"] in jails[name], "a worker's answers come from its own jail")
            stage.check(KNOWN.get(result["below"], result["primes"]) == result["primes"], "known counts come out")

        stage.heading("The workers go")
        for name in NAMES:
            kernel("kill", name)
    stage.heading("What to notice")
    shares = Counter(name for name, _ in results)
    stage.notice("Jobs done: " + ", ".join(f"{name} {shares[name]}" for name in NAMES) + ".")
    stage.notice("They ran at the same time: three processes, each with an interpreter, and a crash, of its own.")
    stage.notice("None of them can see the others: pid:[...] is the Linux namespace in which each is alone.")
    stage.notice("A job is a message: the same worker takes jobs from any caller, and answers the sender.")


def deal(client: AgentOSClient, jobs: list[int]) -> list[tuple[str, dict[str, Any]]]:
    """Give every worker one job at a time until all are done: the results, with the worker that found them."""
    results: list[tuple[str, dict[str, Any]]] = []
    waiting = list(jobs)
    idle = list(NAMES)
    while len(results) < len(jobs):
        while idle and waiting:
            sent = client.send_message({"below": waiting.pop(0)}, to_name=idle.pop(0))
            stage.check(sent["success"], "a job is delivered")
        messages = client.recv_messages(timeout=20)["messages"]
        stage.check(bool(messages), "every job is answered")
        for message in messages:
            name, result = message["from_name"], message["message"]
            click.echo(f"    {name} in {result['jail']}: {result['primes']:>7,} primes below {result['below']:,}")
            results.append((name, result))
            idle.append(name)
    return results


stage.run_demo_with_kernel(worker, "Workers: jobs in, results out, through mailboxes")
