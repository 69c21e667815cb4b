"""``agentos service install``: the unit that it writes, which systemd reads without a fault."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentos.userland.cli.kernel import service
from agentos.userland.cli.main import cli
from tests.docs.blocks import ROOT, blocks_of

TREE = '[[supervisor.children]]\nname = "worker"\ncommand = ["sleep", "1000"]\n'
USER = "daemon"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with spaces and a percent sign in its path; units of the user are below it."""
    directory = tmp_path / "my 100% agents"
    directory.mkdir()
    (directory / "agentos.toml").write_text(TREE)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    return directory


def install(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["service", "install", *arguments])


@pytest.mark.parametrize("options", [("--user",), (), ("--run-as", USER, "--name", "shop")])
def test_systemd_finds_no_fault_with_a_unit(options: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("the unit isn't verified: no systemd-analyze here (Debian: apt-get install systemd)")
    printed = install("--print", *options)
    unit = tmp_path / "agentos.service"
    unit.write_text(printed.stdout)

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )

    assert printed.exit_code == 0
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_users_unit_is_written_and_shown(project: Path) -> None:
    done = install("--user")

    path = project / "config" / "systemd" / "user" / "agentos.service"
    agentos = Path(sys.executable).with_name("agentos")
    assert done.exit_code == 0, done.output
    assert (path.stat().st_mode & 0o777, os.listdir(path.parent)) == (0o644, ["agentos.service"])
    escaped = str(project).replace("%", "%%")
    assert f'ExecStart={agentos} run "{escaped}/agentos.toml"\n' in path.read_text()
    assert "".join(f"  {line}\n" for line in path.read_text().splitlines()) in done.output
    assert "  systemctl --user enable --now agentos\n" in done.output


def test_systemd_waits_longer_than_the_kernel_for_its_end(project: Path) -> None:
    (project / "agentos.toml").write_text('[kernel]\nstop_timeout = "90.5s"\n')

    assert "\nTimeoutStopSec=106s\n" in install("--user", "--print").output


def test_another_unit_of_that_name_is_left_as_it_is_unless_it_shall_be_replaced(project: Path) -> None:
    path = project / "config" / "systemd" / "user" / "agentos.service"
    install("--user")
    ours = path.read_text()
    path.write_text(ours.replace("RestartSec=5s", "RestartSec=9s"))

    refused, mine = install("--user"), path.read_text()
    replaced, again = install("--user", "--replace"), install("--user")

    assert (refused.exit_code, "RestartSec=9s" in mine) == (1, True)
    assert "exists and differs" in refused.output
    assert "  | -RestartSec=9s\n  | +RestartSec=5s\n" in refused.output
    assert (replaced.exit_code, again.exit_code, path.read_text()) == (0, 0, ours)


FILE = "agentos.toml"


def test_the_units_of_the_how_to_are_those_that_it_writes() -> None:
    system, user = (b.text for b in blocks_of(ROOT / "docs/how-to/run-under-systemd.md") if b.language == "ini")
    written = [
        service.write_unit(["/opt/agentos/bin/agentos"], f"/etc/agentos/{FILE}", False, "agentos", "agentos", 60),
        service.write_unit(
            ["/home/ada/.local/bin/agentos"], "/home/ada/.config/agentos/agentos.toml", True, None, "", 60
        ),
    ]

    assert [re.sub(r"^# .*\n", "", text) for text in (system, user.replace("%h", "/home/ada"))] == written


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--run-as", "no-such-user"), "there is no user no-such-user: `useradd --system no-such-user`"),
        (("--name", "a/b"), "--name: expected lower-case letters"),
        (("--user", "--run-as", USER), "--run-as: expected without --user"),
        (("none.toml",), "none.toml"),
    ],
)
def test_what_can_not_be_a_service_is_refused(arguments: tuple[str, ...], error: str, project: Path) -> None:
    refused = install(*arguments)

    assert refused.exit_code in (1, 2)
    assert error in refused.output
    assert not (project / "config").exists()


def test_a_wrong_configuration_is_not_installed(project: Path) -> None:
    (project / "agentos.toml").write_text("[supervisr]\n")

    refused = install("--user")

    assert (refused.exit_code, "supervisr" in refused.output) == (2, True)
    assert not (project / "config").exists()


def test_a_system_service_takes_root(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = os.geteuid() or 1000  # an ordinary user's own file stays its own
    monkeypatch.setattr(os, "geteuid", lambda: ordinary)

    refused = install()

    assert refused.exit_code == 1
    assert "a system service is installed by root" in refused.output
