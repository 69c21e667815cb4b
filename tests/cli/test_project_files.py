"""What lies in the place of a configuration file that isn't named: it is told, and no command waits for it."""

import os
import socket
from pathlib import Path

import pytest

from agentos_sdk.project import default_project_socket, find_project
from tests.cli.agents.test_projects import Desk, desk, place

__all__ = ["desk", "place"]  # fixtures


@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "device"])
def test_what_is_no_file_is_told_and_never_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A command that opens a FIFO waits for a writer that never comes."""
    shop = desk.project("shop")
    file = shop / "agentos.toml"
    file.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        match kind:
            case "FIFO":
                os.mkfifo(file)
            case "directory":
                file.mkdir()
            case "device":
                file.symlink_to("/dev/zero")
            case _:
                monkeypatch.chdir(shop)
                server.bind("agentos.toml")
        for command in ("run", "ps", "check"):
            status, printed = desk.type(shop, command)
            assert status == 1, printed
            assert f"{file} isn't a regular file: remove it" in printed

    (shop / "below").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(desk.place))
    monkeypatch.chdir(shop / "below")
    assert not find_project().exists


@pytest.mark.parametrize("content", [b"a = " + b"[" * 100_000, b"[kernel]\nsocket = '\xff'\n", b"sparse"])
def test_a_file_that_no_kernel_takes_names_no_socket(
    place: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file = place / "agentos.toml"
    file.write_bytes(content)
    if content == b"sparse":
        os.truncate(file, 1 << 40)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.chdir(place)

    assert find_project().socket == default_project_socket(str(file))
