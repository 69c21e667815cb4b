"""Adds our server to the configuration file of an MCP client on this host, or makes the text for one elsewhere.

Paths and shapes are those of the clients' own documentation in November 2026. All functions block.
"""

import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from agentos.userland.directories import config_home, home
from agentos.userland.whole_files import replacing

from .json_edit import NotJSON, get_member, set_member

SERVER_NAME = "agentos"  # our server's name in the client's file, unless the entry was given a name


class InstallError(Exception):
    """A client's file can't be changed; the text says why and what to do."""


@frozen
class Client:
    """An MCP client. ``table`` is the member of its JSON file that has the servers.

    ``linux`` is the file's path below the home directory, or below ``$XDG_CONFIG_HOME`` where it begins with .config.
    ``typed``: each server says ``"type": "stdio"``.
    """

    title: str
    table: str
    linux: str
    macos: str
    windows: str
    typed: bool = False


CLIENTS: Mapping[str, Client] = {
    "claude-desktop": Client(
        "Claude Desktop",
        "mcpServers",
        ".config/Claude/claude_desktop_config.json",
        "~/Library/Application Support/Claude/claude_desktop_config.json",
        r"%APPDATA%\Claude\claude_desktop_config.json",
    ),
    "claude-code": Client(
        "Claude Code", "mcpServers", ".claude.json", "~/.claude.json", r"%USERPROFILE%\.claude.json", typed=True
    ),
    "cursor": Client(
        "Cursor", "mcpServers", ".cursor/mcp.json", "~/.cursor/mcp.json", r"%USERPROFILE%\.cursor\mcp.json"
    ),
    "vscode": Client(
        "VS Code",
        "servers",
        ".config/Code/User/mcp.json",
        "~/Library/Application Support/Code/User/mcp.json",
        r"%APPDATA%\Code\User\mcp.json",
        typed=True,
    ),
    "gemini-cli": Client(
        "Gemini CLI",
        "mcpServers",
        ".gemini/settings.json",
        "~/.gemini/settings.json",
        r"%USERPROFILE%\.gemini\settings.json",
    ),
}


@frozen
class Change:
    """The change of one file: its text before (``None``: there is no file) and after."""

    path: Path
    before: str | None
    after: str


def server_command(name: str, socket: str, state_dir: Path, more: Sequence[str] = ()) -> list[str]:
    """How a client starts our server for the entry ``name``.

    With absolute paths, as a client starts it in a directory and an environment of its own choice.
    """
    script = Path(sys.executable).with_name("agentos")
    program = [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "agentos"]
    return [
        *program,
        "mcp",
        "--client",
        name,
        "--socket",
        os.path.abspath(socket),
        "--state-dir",
        str(state_dir),
        *more,
    ]


def through_wsl(command: Sequence[str], distribution: str) -> list[str]:
    """The command for a client on Windows, with the kernel in this distribution of WSL."""
    return ["wsl.exe", "--distribution", distribution, "--exec", *command]


def through_ssh(command: Sequence[str], host: str) -> list[str]:
    """The command for a client on another host. SSH must not need a password: it can't ask for one."""
    return ["ssh", "-T", host, shlex.join(command)]


def server_entry(client: Client, command: Sequence[str]) -> dict[str, Any]:
    """Our server as a value of the client's table."""
    return {**({"type": "stdio"} if client.typed else {}), "command": command[0], "args": list(command[1:])}


def find_file(client: Client) -> Path:
    """The client's file on this host, whether it exists or not."""
    if client.linux.startswith(".config/"):
        return config_home() / client.linux.removeprefix(".config/")
    return home() / client.linux


def plan(client: Client, server: str, entry: Mapping[str, Any], state_dir: Path) -> Change:
    """The client's file with our server in it. Raises :class:`InstallError`.

    A server of that name is replaced only if it is ours, of the same state directory.
    """
    path = Path(os.path.realpath(find_file(client)))  # behind a symlink, which stays
    try:
        before = path.read_bytes().decode() if path.exists() else None
        old = get_member(before, client.table, server) if before and before.strip() else None
        if old is not None and not _is_ours(old, state_dir):
            raise InstallError(
                f"{path} has another server {server!r} already: choose a name with --name, or remove that server"
            )
        return Change(path, before, set_member(before or "", client.table, server, entry))
    except OSError as error:
        raise InstallError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InstallError(f"{path}: expected text in UTF-8") from None
    except NotJSON as error:
        raise InstallError(f"{path}: {error}: correct the file, or add the server by hand: see --print") from None


def write(change: Change) -> Path | None:
    """Make the change; returns where the file's former text is now. Raises :class:`InstallError`."""
    path, backup = change.path, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if change.before is not None:
            backup = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
            shutil.copy2(path, backup)
            if backup.read_bytes() != change.before.encode():
                backup.unlink()
                raise InstallError(f"{path} has just been changed by another program: try again")
        with replacing(path) as file:
            file.write(change.after.encode())
            file.flush()
            _take_ownership_of(path, file.fileno())
            os.fsync(file.fileno())
    except OSError as error:
        raise InstallError(f"{error.filename or path}: {error.strerror}") from None
    return backup


def _take_ownership_of(path: Path, fd: int) -> None:
    """Give the new file owner and mode of the one that it replaces; a first one is the user's alone."""
    with suppress(FileNotFoundError):
        status = path.stat()
        os.fchown(fd, status.st_uid, status.st_gid)
        os.fchmod(fd, stat.S_IMODE(status.st_mode))


def _is_ours(entry: Any, state_dir: Path) -> bool:
    """Whether this starts our server with this state directory."""
    args = entry.get("args") if isinstance(entry, dict) else None
    return isinstance(args, list) and "mcp" in args and str(state_dir) in args
