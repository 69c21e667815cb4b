"""Which prefixes of interpreters a jail shows."""

import pwd
from pathlib import Path

import pytest

from agentos.sandbox.errors import SandboxError
from agentos.sandbox.files.interpreter_prefixes import describe_exposure, validate_interpreter
from agentos.sandbox.policy import Interpreter


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's home, as the list of users has it."""
    place = tmp_path / "alice"
    place.mkdir()
    entry = pwd.struct_passwd(("alice", "x", 4000, 4000, "", str(place), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    return place


@pytest.mark.parametrize("prefix", ["/", "/etc", "/root", "/workspace"])
def test_a_directory_of_the_systems_that_has_everything_in_it_is_not_shown(prefix: str) -> None:
    assert describe_exposure(prefix) == f"a jail would show {prefix}, with everything in it"


@pytest.mark.parametrize("prefix", ["/usr", "/usr/local"])
def test_the_systems_own_is_shown_anyway(prefix: str) -> None:
    assert describe_exposure(prefix) is None


def test_a_home_is_not_shown_nor_what_homes_are_in(home: Path) -> None:
    for prefix in (home, home.parent, home / ".local"):
        assert describe_exposure(str(prefix)) == f"a jail would show {prefix}, which contains a user's home directory"


def test_a_directory_in_a_home_is_shown(home: Path) -> None:
    assert describe_exposure(str(home / "venv")) is None
    assert describe_exposure(str(home / ".pyenv" / "versions" / "3.11.7")) is None


def test_a_link_to_a_home_is_no_way_around(home: Path, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(home)

    assert (
        describe_exposure(str(tmp_path / "python"))
        == f"a jail would show {home}, which contains a user's home directory"
    )


def test_both_prefixes_of_an_environment_are_looked_at(home: Path) -> None:
    for prefixes in ((home, "/usr"), (home / "venv", home)):
        with pytest.raises(SandboxError, match="which contains a user's home directory: install AgentOS into"):
            validate_interpreter(Interpreter(f"{home}/bin/python", *map(str, prefixes)))
    validate_interpreter(Interpreter(f"{home}/venv/bin/python", f"{home}/venv", "/usr"))
