"""``agentos init``: writes a configuration file to begin with."""

from io import RawIOBase
from pathlib import Path

import click

from agentos.userland.cli.common import Failed
from agentos.userland.cli.main import CONFIG
from agentos.userland.whole_files import write_all

TEMPLATE = """\
# A kernel and the agents that it keeps running. `agentos check` finds mistakes here, `agentos run` starts it all,
# `agentos ps` in another terminal shows it. A line that begins with # and a key is an example: take the # away.

[kernel]
# socket = "agentos.sock"                     # default: in $XDG_RUNTIME_DIR/agentos; paths begin at this file's place
# log_level = "info"                          # debug, info, warning, error

[llm]
# The model that agents ask. Without these lines a key in the environment or in .env decides which.
# provider = "offline"                        # offline answers by rules and calls no model; or gemini, openai
# model = "gpt-5-mini"
# budget = [{ tokens = 200000, per = "1d" }]  # of all agents together

[supervisor]
strategy = "one_for_one"                      # each agent is restarted by itself; or one_for_all, rest_for_one

[[agents]]
name = "clock"
command = ["sh", "-c", "while true; do date; sleep 10; done"]
restart = "permanent"                         # always; or transient: after a failure alone, temporary: never
# script = "agent.py"                         # a Python program, instead of command
# args = ["--fast"]
# env = { REGION = "north" }
# code = "."                                  # a directory that the agent sees as /agent; else script alone
# workspace = "keep"                          # its /workspace: tmp is empty in each life, keep stays; or a directory
# permissions = "sandboxed"                   # minimal, readonly, sandboxed, standard, or a set of its own
# network = "none"                            # "filtered": what its rules allow; "host"
# limits = { memory = "256M", cpu_quota = "50%", max_pids = 32 }
# backoff = { min = "1s", max = "30s" }       # delays between restarts
# max_restarts = 5                            # within restart_window, then it is given up; or "unlimited"
# restart_window = "60s"
# on_give_up = "fail"                         # the other agents go on; or escalate: the supervisor counts it
# required = true                             # if it doesn't come up, the kernel ends
# after = ["database"]                        # it begins when these agents are up, have ended or were given up
"""


@click.command()
@click.argument("file", default=CONFIG, type=click.Path(path_type=Path))
def init(file: Path) -> None:
    """Write an agentos.toml to begin with.

    It has one agent and says in comments what else there is. A FILE that exists is left as it is unless it is empty.
    """
    try:
        is_empty = file.exists() and file.stat().st_size == 0
        with open(
            file, "r+b" if is_empty else "xb", buffering=0
        ) as opened:  # not replaced: an agent that works here can't write to it
            fill(opened, TEMPLATE.encode())
    except FileExistsError:
        raise Failed(f"{file} exists, and is left as it is: remove it first, or name another file") from None
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}") from None
    also = "" if file == CONFIG else f" {file}"
    click.echo(f"{file} written: see what is in it, then `agentos check{also}` and `agentos run{also}`")


def fill(file: RawIOBase, text: bytes) -> None:
    """Write a file that is empty; where that fails it is empty again, so that the next `agentos init` fills it."""
    try:
        write_all(file, text)
    except OSError:
        file.truncate(0)
        raise
