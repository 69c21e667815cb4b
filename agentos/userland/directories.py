"""The user's directories for state and configuration, as the XDG base directories say."""

import os
from pathlib import Path

from agentos.userland.cli.common import Failed


class NoHome(Failed):
    """The user has no home directory, as in many containers; the text says what to set."""


def home() -> Path:
    """The user's home directory; raises :class:`NoHome`."""
    try:
        return Path.home()
    except RuntimeError:
        raise NoHome(f"uid {os.getuid()} has no home directory here: set HOME") from None


def state_home() -> Path:
    """$XDG_STATE_HOME or ~/.local/state; raises :class:`NoHome`."""
    return _directory("XDG_STATE_HOME", ".local/state")


def config_home() -> Path:
    """$XDG_CONFIG_HOME or ~/.config; raises :class:`NoHome`."""
    return _directory("XDG_CONFIG_HOME", ".config")


def _directory(variable: str, below: str) -> Path:
    if given := os.environ.get(variable):
        return Path(given)
    try:
        return home() / below
    except NoHome as error:
        raise NoHome(f"{error.message} or {variable}") from None
