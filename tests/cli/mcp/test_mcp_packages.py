"""Packages of MCP servers: what a hostile installation leaves in its workspace is copied with care."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from agentos.userland.cli.common import Failed
from agentos.userland.cli.mcp import packages as mcp_packages
from agentos.userland.cli.mcp.packages import Package, install
from agentos_sdk import AgentOSClient

PACKAGE = Package("pip", "notes", "notes", "notes", ())
Leave = Callable[[Path], None]


def make_package(place: Path) -> None:
    (place / "bin").mkdir(parents=True)
    for name in ("python", "notes"):
        (place / "bin" / name).write_text("")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Leave], Path]:
    """Install a package; in place of the installation in a jail, ``leave`` makes the path that it gets."""

    def run(leave: Leave) -> Path:
        def in_jail(client: AgentOSClient, server: str, package: Package, workspace: str) -> None:
            leave(Path(workspace, "package"))

        monkeypatch.setattr(mcp_packages, "_run", in_jail)
        place = tmp_path / "packages" / "notes"
        install(cast("AgentOSClient", None), "notes", PACKAGE, place)
        return place

    return run


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory of the host that looks like a package, with a file for the operator alone."""
    make_package(tmp_path / "host")
    (tmp_path / "host" / "secret").write_text("of the operator")
    (tmp_path / "host" / "secret").chmod(0o600)
    return tmp_path / "host"


def test_a_package_that_is_a_symlink_to_a_directory_of_the_host_is_not_copied(
    installed: Callable[[Leave], Path], secret: Path, tmp_path: Path
) -> None:
    with pytest.raises(Failed, match="notes isn't installed: it left no directory of its own"):
        installed(lambda package: package.symlink_to(secret))

    assert not (tmp_path / "packages" / "notes").exists()


def test_symlinks_within_a_package_are_copied_as_symlinks(installed: Callable[[Leave], Path], secret: Path) -> None:
    def leave(package: Path) -> None:
        make_package(package)
        (package / "directory").symlink_to(secret)
        (package / "file").symlink_to(secret / "secret")

    place = installed(leave)

    assert os.readlink(place / "directory") == str(secret)
    assert os.readlink(place / "file") == str(secret / "secret")
    assert (secret / "secret").stat().st_mode & 0o777 == 0o600


def test_a_package_with_a_pipe_is_not_installed(installed: Callable[[Leave], Path], tmp_path: Path) -> None:
    def leave(package: Path) -> None:
        make_package(package)
        os.mkfifo(package / "pipe")

    with pytest.raises(Failed, match=r"notes isn't installed: .*pipe"):
        installed(leave)

    assert not (tmp_path / "packages" / "notes").exists()


def test_a_package_whose_copy_would_fill_the_disk_is_not_installed(
    installed: Callable[[Leave], Path], tmp_path: Path
) -> None:
    """Holes and hard links cost its jail nothing."""

    def leave(package: Path) -> None:
        make_package(package)
        (package / "0").touch()
        os.truncate(package / "0", 1 << 20)
        for number in range(1, 2100):
            os.link(package / "0", package / str(number))

    with pytest.raises(Failed, match=r"notes isn't installed: its files have 22\d{8} bytes, more than 2147483648"):
        installed(leave)

    assert not (tmp_path / "packages" / "notes").exists()
