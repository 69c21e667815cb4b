"""``python -m demos.multi_agent_chat``: specialists are processes; one crashes in mid-talk, and the talk goes on."""

from pathlib import Path
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "multi_agent_chat"
TITLE = "A talk of three specialists, of which one crashes"
TOPIC = "Tulips from seed"
ROLES = ("optimist", "sceptic", "engineer")
ROUNDS = 2


def lives(client: AgentOSClient) -> dict[str, dict[str, Any]]:
    """The specialists as the kernel lists them."""
    return {agent["name"]: agent for agent in client.list_agents() if agent["name"] in ROLES}


def ask(client: AgentOSClient, role: str, talk: list[str]) -> str:
    """What a specialist says next; who has died of the question is asked again when it is back."""
    while True:
        restarts = lives(client)[role]["restarts"]
        sent = client.send_message("\n".join(talk), to_name=role)
        stage.check(sent["success"], f"the {role} can be asked: {sent.get('error')}")
        answers: list[str] = []

        def is_over(restarts: int = restarts, answers: list[str] = answers) -> bool:
            answers += [each["message"] for each in client.recv_messages(max_messages=1)["messages"]]
            return bool(answers) or lives(client)[role]["restarts"] > restarts

        stage.until(is_over, f"the {role} answers, or is restarted")
        if answers:
            return answers[0]
        stage.until(lambda: lives(client)[role]["state"] == "running", f"the {role} is back")
        died = stage.audited(client, "agents", call="AGENT_EXITED", name=role)[-1]
        click.secho(f"{role:>8}: ({died['about']}; restarted as process {lives(client)[role]['pid']})", fg="red")


def demo(config: Path | None) -> None:
    with stage.kernel(config) as running, AgentOSClient(running.socket) as client:
        for role in ROLES:
            spawned = client.spawn(role, str(HERE / "specialist.py"), args=[role], restart="permanent")
            stage.check(spawned["success"], f"the {role} starts: {spawned.get('error')}")
        began = {role: agent["pid"] for role, agent in lives(client).items()}
        stage.heading(f"They talk about: {TOPIC}")
        talk = [f"Topic: {TOPIC}"]
        for role in ROLES * ROUNDS:
            talk.append(f"{role}: {ask(client, role, talk)}")
            stage.say(f"{role:>8}: {talk[-1].partition(': ')[2]}")
        show_evidence(client, began)
        running.stop()
    stage.heading("What to notice")
    stage.notice("A segmentation fault ends a process. In a framework that is the process of all three.")
    stage.notice("Who was killed came back with its name, its mailbox and its state: it spoke the turn that killed it.")


def show_evidence(client: AgentOSClient, began: dict[str, int]) -> None:
    stage.heading("What the kernel has")
    now = lives(client)
    for role in ROLES:
        asked = len(client.get_contents(role)["questions"])
        agent, first = now[role], began[role]
        stage.say(f"{role:>8}: restarts {agent['restarts']}, process {first} -> {agent['pid']}, {asked} questions")
    restarts = {role: now[role]["restarts"] for role in ROLES}
    stage.check(restarts == {"optimist": 0, "sceptic": 1, "engineer": 0}, "one was restarted, and no other")
    stayed = [role for role in ROLES if now[role]["pid"] == began[role]]
    stage.check(stayed == ["optimist", "engineer"], "the others are still the same processes")
    asked_in_all = sum(len(client.get_contents(role)["questions"]) for role in ROLES)
    stage.check(asked_in_all == len(ROLES) * ROUNDS, "every turn was spoken, once")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
