"""Which directories a Python needs is told from the files beside it."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from agentos.agents.jail.interpreters import NoInterpreter, interpreter
from agentos.sandbox.policy import Interpreter


def test_our_own_is_told_as_it_tells_itself() -> None:
    assert interpreter(sys.executable) == Interpreter(
        sys.executable, os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)
    )


def test_the_systems_has_the_system_for_its_prefix() -> None:
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("there is no /usr/bin/python3 here")

    assert interpreter("/usr/bin/python3") == Interpreter("/usr/bin/python3", "/usr", "/usr")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An installation as of pyenv or uv: python3 is a link to the program beside it."""
    (tmp_path / "base" / "bin").mkdir(parents=True)
    (tmp_path / "base" / "bin" / "python3.11").write_bytes(b"\x7fELF")
    (tmp_path / "base" / "bin" / "python3").symlink_to("python3.11")
    library(tmp_path / "base")
    return tmp_path / "base"


def library(prefix: Path) -> None:
    (prefix / "lib" / "python3.11").mkdir(parents=True)
    (prefix / "lib" / "python3.11" / "os.py").touch()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's home, as the list of users has it."""
    place = tmp_path / "alice"
    place.mkdir()
    entry = pwd.struct_passwd(("alice", "x", 4000, 4000, "", str(place), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    return place


def environment(place: Path, home: str, python: Path) -> Path:
    """A virtual environment; its interpreter."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(python)
    (place / "pyvenv.cfg").write_text(f"include-system-site-packages = false\nHome = {home}\nversion = 3.11\n")
    return place / "bin" / "python"


def test_a_virtual_environment_has_its_own_prefix_and_its_bases(base: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", f"{base}/bin", base / "bin" / "python3")

    assert interpreter(str(python)) == Interpreter(str(python), str(tmp_path / "venv"), str(base))


def test_a_base_that_is_named_by_a_link_is_where_it_leads(base: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(base)
    python = environment(tmp_path / "venv", f"{tmp_path}/latest/bin", base / "bin" / "python3")

    assert interpreter(str(python)).base_prefix == str(base)


def test_an_installation_that_is_named_by_a_link_is_where_it_leads(base: Path, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(base / "bin" / "python3")

    assert interpreter(str(tmp_path / "python")) == Interpreter(str(base / "bin" / "python3.11"), str(base), str(base))


def test_an_environment_found_by_way_of_a_home_shows_what_its_base_really_is(base: Path, home: Path) -> None:
    """uv puts links into ~/.local/bin, beside which a home has its keyrings."""
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "python3").symlink_to(base / "bin" / "python3.11")
    python = environment(home / "venv", str(home / ".local" / "bin"), base / "bin" / "python3")

    assert interpreter(str(python)) == Interpreter(str(python), str(home / "venv"), str(base))


def test_an_environment_whose_own_link_goes_through_what_is_not_shown_is_refused(base: Path, home: Path) -> None:
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "python3").symlink_to(base / "bin" / "python3.11")
    python = environment(home / "venv", str(home / ".local" / "bin"), home / ".local" / "bin" / "python3")

    with pytest.raises(NoInterpreter, match=f"make the environment anew with {base}/bin/python3.11 -m venv"):
        interpreter(str(python))


@pytest.mark.parametrize("place", [".", "..", ".local"])
def test_a_home_is_no_prefix_whatever_is_in_it(home: Path, place: str) -> None:
    prefix = (home / place).resolve()
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3").write_bytes(b"\x7fELF")
    library(prefix)

    with pytest.raises(NoInterpreter, match=f"would show {prefix}, which contains a user's home directory"):
        interpreter(str(prefix / "bin" / "python3"))


def test_a_home_is_no_virtual_environment(base: Path, home: Path) -> None:
    python = environment(home, f"{base}/bin", base / "bin" / "python3")

    with pytest.raises(NoInterpreter, match="which contains a user's home directory"):
        interpreter(str(python))


def test_a_directory_with_a_python_but_without_its_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "things" / "bin").mkdir(parents=True)
    (tmp_path / "things" / "bin" / "python3").write_bytes(b"\x7fELF")

    with pytest.raises(NoInterpreter, match="has no library"):
        interpreter(str(tmp_path / "things" / "bin" / "python3"))


def test_an_environment_whose_base_is_gone_is_refused(base: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", str(tmp_path / "gone"), base / "bin" / "python3")

    with pytest.raises(NoInterpreter, match="there is no python"):
        interpreter(str(python))


def test_an_environment_that_does_not_say_where_its_base_is_is_refused(base: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", "", base / "bin" / "python3")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("version = 3.11\n")

    with pytest.raises(NoInterpreter, match="doesn't say home"):
        interpreter(str(python))


@pytest.mark.parametrize("name", ["pyvenv.cfg", "bin/python"])
def test_a_fifo_keeps_nothing_waiting(base: Path, tmp_path: Path, name: str) -> None:
    python = environment(tmp_path / "venv", "/x", base / "bin" / "python3")
    (tmp_path / "venv" / name).unlink()
    os.mkfifo(tmp_path / "venv" / name)

    with pytest.raises((NoInterpreter, OSError), match="not a regular file"):
        interpreter(str(python))


@pytest.mark.parametrize("content", [b"home = \xff\xfe\n", None])
def test_an_environment_whose_file_cannot_be_read_is_refused(base: Path, tmp_path: Path, content: bytes | None) -> None:
    python = environment(tmp_path / "venv", "/x", base / "bin" / "python3")
    (tmp_path / "venv" / "pyvenv.cfg").unlink()
    if content is None:
        (tmp_path / "venv" / "pyvenv.cfg").mkdir()
    else:
        (tmp_path / "venv" / "pyvenv.cfg").write_bytes(content)

    with pytest.raises(NoInterpreter, match="can't be read"):
        interpreter(str(python))


def test_a_wrapper_script_is_refused_with_what_to_name_instead(tmp_path: Path) -> None:
    """pyenv's shims are such."""
    shim = tmp_path / "python"
    shim.write_text("#!/usr/bin/env bash\nexec pyenv exec python\n")

    with pytest.raises(NoInterpreter, match="name the interpreter itself"):
        interpreter(str(shim))


def test_what_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        interpreter(str(tmp_path / "python"))


def test_a_relative_path_is_no_interpreter(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)

    for path in ("bin/python3", "no-such-name"):
        with pytest.raises(NoInterpreter, match="absolute"):
            interpreter(path)
