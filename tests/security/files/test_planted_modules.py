"""An agent writes Python modules into a directory of the host's where our programs are started: none is imported."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentos.userland.cli.kernel.service import find_agentos
from agentos.userland.mcp.install import server_command
from agentos.userland.mcp.transports.standalone import KernelOptions, start
from agentos.userland.web.serve import checks
from tests.support.wire import PATIENCE

OWNED = "import os, pathlib\nwith open({!r}, 'a') as file: file.write(__name__ + '\\n')\nos._exit(0)\n"
NAMES = ("agentos/__init__", "agentos_sdk/__init__", "click", "ctypes", "json", "os", "trio/__init__")


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a module of the current directory writes when it is imported."""
    project, owned = tmp_path / "project", tmp_path / "owned"
    for name in NAMES:
        path = project / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(OWNED.format(str(owned)))
    monkeypatch.chdir(project)
    return owned


def test_a_kernel_of_an_mcp_server_imports_nothing_from_the_clients_directory(
    owned: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = start(KernelOptions(str(tmp_path / "s"), tmp_path / "state", tmp_path / "absent.toml"))
    status = process.wait(PATIENCE)

    assert not owned.exists(), owned.read_text()
    assert status == 2, "the kernel has looked for its configuration"
    assert "absent.toml: can't be read" in "".join(capfd.readouterr())


def test_the_page_system_imports_nothing_from_the_configurations_directory(owned: Path, tmp_path: Path) -> None:
    printed = run_here(checks(tmp_path / "state")["verify"])

    assert not owned.exists(), owned.read_text()
    assert "audit" in printed


def test_a_unit_and_an_mcp_entry_without_the_console_script_import_nothing_from_the_directory(
    owned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "python"  # an interpreter with no agentos beside it
    alone.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(alone))
    commands = (find_agentos(), server_command("editor", str(tmp_path / "s"), tmp_path / "state"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    for command in commands:
        assert command[0] == str(alone)
        assert "Usage: " in run_here([*command, "--help"], environment)

    assert not owned.exists(), owned.read_text()


def run_here(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What a command prints that is started in the current directory."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)
    return done.stdout + done.stderr
