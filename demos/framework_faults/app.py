"""An agent of the OpenAI Agents SDK. It does what it is asked for on the command line, by one of four bad tools."""

import ctypes
import subprocess
import sys

from agents import Agent, Runner, function_tool


@function_tool
def loop() -> str:
    """Compute something. It never comes to an end."""
    while True:
        pass


@function_tool
def leak() -> str:
    """Load something. It is never dropped."""
    kept = []
    while True:
        kept.append(b"x" * (1 << 20))


@function_tool
def fork() -> str:
    """Start helpers. There is always one more."""
    try:
        while True:
            subprocess.Popen(["sleep", "1000"])
    except OSError as error:
        print(f"no more helpers: {error}", flush=True)
        raise


@function_tool
def crash() -> str:
    """Call a library. It reads memory that isn't there."""
    return str(ctypes.string_at(0))


if __name__ == "__main__":
    agent = Agent(name="worker", model="offline", tools=[loop, leak, fork, crash])
    print(f"asked to {sys.argv[1]}", flush=True)
    Runner.run_sync(agent, f"Please {sys.argv[1]}.")
