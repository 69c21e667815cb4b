"""``python -m demos.spawn_test``: an agent is spawned, listed, paused, resumed and killed; and what can go wrong."""

from typing import Any

import click

from demos import stage
from demos.printing_client import PrintingClient, open_printing_client

HERE = stage.HERE / "spawn_test"
CLOCK, BROKEN, MISSING = (str(HERE / name) for name in ("clock.py", "broken.py", "missing.py"))


def spawn_test(socket: str) -> None:
    with open_printing_client(socket) as kernel:
        life(kernel)
        mistakes(kernel)
    stage.heading("What to notice")
    stage.notice("Each agent is a process. With ready=hello, spawn answers when it has said HELLO, or why it did not.")
    stage.notice("Killed means asked first: SIGTERM, time to say goodbye, and only then SIGKILL.")
    stage.notice("Every refusal has a code for programs and a sentence for people.")


def life(kernel: PrintingClient) -> None:
    stage.heading("An agent from birth to death")
    spawned = kernel("spawn", "clock", CLOCK, ready="hello")
    stage.check(spawned["success"], "the clock starts")
    listed = [agent for agent in kernel("list_agents") if agent["name"] == "clock"]
    stage.check([agent["pid"] for agent in listed] == [spawned["pid"]], "the list shows the process that was spawned")
    stage.check(kernel("pause", "clock")["success"], "an agent can be paused")
    stage.check(kernel("resume", "clock")["success"], "a paused agent goes on")
    stage.check(kernel("kill", "clock"), "an agent can be killed")
    last = kernel("logs", "clock", tail=2)["lines"]
    stage.check(any("goodbye" in line["text"] for line in last), "an agent can say goodbye")
    end = kernel("wait", "clock")
    stage.check(end["exit_code"] == 0, "its end is remembered")


def mistakes(kernel: PrintingClient) -> None:
    stage.heading("What goes wrong, and how it is said")
    refused(kernel("spawn", "nobody", MISSING), "not_found")
    refused(kernel("spawn", "no/such name", CLOCK), "bad_request")
    kernel("spawn", "clock", CLOCK, ready="hello")
    refused(kernel("spawn", "clock", CLOCK, ready="hello"), "already_exists")
    kernel("kill", "clock")
    refused(kernel("wait", "nobody"), "not_found")
    broken = kernel("spawn", "broken", BROKEN, ready="hello")
    refused(broken, "unavailable")
    click.echo(f"    its stderr ends: {broken['stderr'][-1]}")
    stage.check("ModuleNotFoundError" in str(broken["stderr"]), "a failed start shows the program's last words")


def refused(reply: dict[str, Any], code: str) -> None:
    stage.check(reply.get("code") == code, f"this is refused with {code}")


stage.run_demo_with_kernel(spawn_test, "Spawn test: the life of an agent from outside")
