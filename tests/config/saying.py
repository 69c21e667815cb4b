"""Write a configuration file into the working directory, and see what it gives."""

from pathlib import Path

import pytest

from agentos.config.load import Config, ConfigError, load


def said(text: str | bytes) -> list[str]:
    """What is wrong with a file, line by line."""
    Path("agentos.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load("agentos.toml")
    return str(caught.value).split("\n")


def loaded(text: str) -> Config:
    Path("agentos.toml").write_text(text or "# nothing yet\n")
    return load("agentos.toml")


def agent(lines: str) -> str:
    """A file with one agent, whose first line is line 3."""
    return f'[[supervisor.children]]\nname = "w"\n{lines}'
