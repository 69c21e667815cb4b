"""``python -m demos.three_agents``: three coding agents repair one repository at once; one is taken."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click

from agentos_sdk import AgentOSClient
from demos import stage

HERE = stage.HERE / "three_agents"
TITLE = "Three coding agents, one repository, one queue, one budget"
CODERS = ("anthropic-coder", "openai-coder", "gemini-coder")
BUDGET = 60_000  # tokens, of all three together
BUG = "def add(a, b):\n    return a - b\n"
TEST = """\
from add import add

assert add(2, 2) == 4, f"2 and 2 is {add(2, 2)}"
assert add("a", "b") == "ab"
print("it adds")
"""
PRESET = """\
about = "the demo's coder in {protocol}'s protocol"
task = ["{name}", "{{task}}"]
[env]
CODER_MODEL = "{{model}}"
"""
WORDS = ("--check", "python3 test_add.py", "--budget", f"tokens={BUDGET}", "Repair add.py", "--dir", "shop")


def demo(is_plain: bool) -> None:
    stage.title(TITLE)
    stage.say(
        "The three are programs of this demo, of forty lines each. They stand for Claude Code, Codex CLI and Gemini "
        "CLI: they speak their vendors' protocols, by the vendors' SDKs where these are installed here, and know "
        "nothing of AgentOS. The answers are rules (rules.toml). With the real ones the command is the same: "
        "--with claude-code --with codex --with gemini-cli."
    )
    with (
        stage.shared_directory() as place,
        stage.kernel(HERE / "agentos.toml") as running,
        AgentOSClient(running.socket) as client,
    ):
        prepare(place, is_plain)
        work(running.socket, place)
        show_evidence(client)
        running.stop()
    stage.heading("What to notice")
    stage.notice("Each had a jail, an overlay of the directory, no key, and its vendor's endpoint at 127.0.0.1.")
    stage.notice("One was sure of a wrong repair: the check has run in its jail, and told.")


def prepare(place: Path, is_plain: bool) -> None:
    """The repository, the programs, and their presets, as a user has them beside agentos.toml.

    ``is_plain``: the programs don't see what is installed beside Python.
    """
    shutil.copytree(HERE / "coders", place / "coders")
    shutil.copy(HERE / "agentos.toml", place)
    (place / "presets").mkdir()
    for name in CODERS:
        program = place / "coders" / name
        if is_plain:
            program.write_text(program.read_text().replace("env python3", "env -S python3 -S", 1))
        program.chmod(0o755)
        preset = PRESET.format(name=name, protocol=name.partition("-")[0])
        (place / "presets" / f"{name}.toml").write_text(preset)
    (place / "shop").mkdir()
    (place / "shop" / "add.py").write_text(BUG)
    (place / "shop" / "test_add.py").write_text(TEST)


def work(socket: str, place: Path) -> None:
    """Let the three work, and take the one that is advised."""
    stage.heading("They work at once")
    programs = [word for name in CODERS for word in ("--with", name)]
    shown = agentos(socket, place, "task", *programs, *WORDS)
    stage.check((place / "shop" / "add.py").read_text() == BUG, "the directory is as it was")
    advised = re.search(r"`agentos apply (task-\d+)` takes it", shown)
    stage.check(advised is not None, "one has repaired it")
    assert advised is not None
    stage.heading("One is taken")
    agentos(socket, place, "apply", advised[1], "--yes")
    done = subprocess.run([sys.executable, "test_add.py"], cwd=place / "shop", capture_output=True, text=True)
    stage.check(done.stdout == "it adds\n", "the repair is right on the host, too")


def agentos(socket: str, place: Path, *words: str) -> str:
    """Run a command in the demo's directory, as a user would, and show what it prints; returns that."""
    click.secho(f"$ agentos {' '.join(json.dumps(word) if ' ' in word else word for word in words)}", bold=True)
    path = f"{place / 'coders'}:{os.environ['PATH']}"
    command = [sys.executable, "-P", "-m", "agentos", *words, "--socket", socket]
    env = {**os.environ, "PATH": path}
    lines = []
    with subprocess.Popen(
        command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            click.echo(f"    {line}", nl=False)
            lines.append(line)
    stage.check(running.returncode == 0, f"agentos {words[0]} succeeds")
    return "".join(lines)


def show_evidence(client: AgentOSClient) -> None:
    stage.heading("What the kernel has of it")
    names = [f"task-{number}" for number in range(1, len(CODERS) + 1)]
    order = [entry["name"] for entry in stage.audited(client, "model", 9, phase="outcome") if entry["name"] in names]
    stage.say(f"answers, in the order of the queue: {', '.join(order)}")
    stage.check(set(Counter(order).values()) == {3}, "each has asked three questions")
    tokens = sum(row["tokens"] for row in client.usage()["usage"] if row["name"] in names)
    stage.say(f"tokens of all three: {tokens:,} of {BUDGET:,}")
    stage.check(0 < tokens <= BUDGET, "the three together stay within the budget")


parser = argparse.ArgumentParser(prog="agentos demo three_agents", description=TITLE)
parser.add_argument("--plain", action="store_true", help="speak plain HTTP, whatever SDKs are installed")
plain: bool = parser.parse_args().plain
stage.run_demo(lambda: demo(plain))
