"""``python -m demos.thinking_agent``: an agent asks a model, word by word, with a tool and a picture.

``--talk``: you ask instead. ``--real``: a real model answers; its key is in the environment.
"""

import argparse
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage
from demos.stage import notice, say

HERE = stage.HERE / "thinking_agent"
AGENT = str(HERE / "agent.py")
FACTORS = (17239, 4711)
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"say": "Who are you, in one sentence?"},
    {"say": f"What is {FACTORS[0]} times {FACTORS[1]}?"},
    {"say": "What do you see in this picture?", "picture": True},
)
TIMEOUT = 120.0  # seconds until the next piece of an answer; a real model may think first

Json = dict[str, Any]


def thinking_agent(talk: bool, real: bool) -> None:
    stage.title("An agent that thinks")
    if real:
        stage.check_key()
        say("A real model answers: the one with a key in your environment.")
    else:
        say("No model is called: the answers are from rules.toml, and other questions are echoed. --real calls one.")
    with stage.kernel(None if real else HERE / "agentos.toml") as running, AgentOSClient(running.socket) as client:
        spawned = client.spawn("thinker", AGENT)
        stage.check(spawned["success"], f"the agent starts: {spawned.get('error')}")
        said = [ask(client, message) for message in (typed_questions() if talk else scripted_questions())]
        printed = [line["text"] for line in client.logs("thinker")["lines"]]
        stage.check("keys in my environment: []" in printed, "the agent has no key")
        running.stop()
    if not talk:
        product = str(FACTORS[0] * FACTORS[1])
        stage.check(product in re.sub(r"\D", "", said[1]), "the product is the tool's")
    print_notices()


def print_notices() -> None:
    stage.heading("What to notice")
    notice("The words came one by one, from the provider through the kernel into the jail, and from there to us.")
    notice("The model only requests a tool; the agent calls it, in its jail, and returns the result.")
    notice("The agent has no network and no API key: only the kernel has the key.")
    notice(
        "With a model of your own: GEMINI_API_KEY=... agentos demo thinking_agent --real --talk "
        "(or OPENAI_API_KEY, after pip install '.[openai]' in AgentOS's repository)."
    )


def scripted_questions() -> Iterator[Json]:
    for question in QUESTIONS:
        stage.heading("A picture, drawn by the agent" if question.get("picture") else "A question")
        click.secho(f"you:   {question['say']}", bold=True)
        yield question


def typed_questions() -> Iterator[Json]:
    stage.heading("Your turn; Ctrl-D ends it")
    with contextlib.suppress(EOFError):
        while True:
            if text := input("you:   ").strip():
                yield {"say": text}
    click.echo()


def ask(client: AgentOSClient, question: Json) -> str:
    """Send a question to the agent, show the answer as it comes, and return its whole text."""
    client.send_message(question, to_name="thinker")
    page = WordWrapper("agent: ")
    for message in messages(client):
        match message:
            case {"delta": text}:
                page.write(text)
            case {"used": name, "with": arguments, "result": result}:
                page.end()
                given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
                click.secho(f"tool:  {name}({given}) = {result}", fg="green")
            case {"error": why}:
                raise stage.DemoError(why)
            case {"done": figures}:
                page.end()
                say(f"       ({figures['model']}, {figures['tokens']} tokens, {figures['latency_ms'] / 1000:.1f} s)")
    return page.text


def messages(client: AgentOSClient) -> Iterable[Json]:
    """The agent's messages about one answer."""
    while True:
        came = client.recv_messages(timeout=TIMEOUT)["messages"]
        stage.check(bool(came), "the agent continues its answer")
        for message in came:
            yield message["message"]
            if "done" in message["message"]:
                return


class WordWrapper:
    """Prints words as they come and wraps lines at ``stage.columns()``."""

    def __init__(self, name: str) -> None:
        self.text = ""
        self._name = name
        self._column = 0

    def write(self, piece: str) -> None:
        self.text += piece
        for word in re.findall(r"\S+|\s+", piece):
            if self._column == 0:
                click.echo(self._name, nl=False)
                self._column = len(self._name)
            if self._column + len(word) > stage.columns():
                self._column = len(self._name)
                click.echo("\n" + " " * self._column, nl=False)
            click.echo(" " if word.isspace() else word if word.isprintable() else repr(word)[1:-1], nl=False)
            self._column += len(word)

    def end(self) -> None:
        if self._column:
            click.echo()
        self._column = 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="agentos demo thinking_agent", description="An agent that thinks.")
    parser.add_argument("--talk", action="store_true", help="you ask, instead of a script")
    parser.add_argument("--real", action="store_true", help=f"ask a real model: set one of {', '.join(stage.KEYS)}")
    given = parser.parse_args()
    stage.run_demo(lambda: thinking_agent(given.talk, given.real))


main()
