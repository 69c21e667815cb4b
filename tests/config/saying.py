"""Write a configuration file into the working directory, and see what it gives."""

from pathlib import Path

from agentos.config.load import Config, ConfigError, load


def said(text: str | bytes) -> list[str]:
    """What is wrong with a file, line by line; or with its agents, if it can be used without these."""
    Path("agentos.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    try:
        faults = load("agentos.toml").faults
    except ConfigError as error:
        return str(error).split("\n")
    assert faults, "nothing is wrong"
    return [str(fault) for fault in faults]


def loaded(text: str) -> Config:
    Path("agentos.toml").write_text(text or "# nothing yet\n")
    return load("agentos.toml")


def agent(lines: str) -> str:
    """A file with one agent, whose first line is line 3."""
    return f'[[supervisor.children]]\nname = "w"\n{lines}'
