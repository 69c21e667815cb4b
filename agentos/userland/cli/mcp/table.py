"""The table ``[mcp.servers.NAME]`` in the text of a configuration file: adds one, and removes one."""

import contextlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

from agentos.userland.cli.common import Failed, printable
from agentos.userland.whole_files import write_all

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[+\s*(?P<keys>[^\]]*?)\s*\]+\s*(#.*)?")


def list_servers(file: Path, text: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of the servers in a file, by name."""
    try:
        servers = tomllib.loads(text).get("mcp", {}).get("servers", {})
        return {name: table for name, table in servers.items() if isinstance(table, dict)}
    except (ValueError, RecursionError, AttributeError):
        raise Failed(f"{file}: not a right configuration: `agentos check` says what is wrong with it") from None


def add_table(text: str, name: str, fields: Mapping[str, object]) -> str:
    """The text with a table for this server at its end."""
    lines = [f"[mcp.servers.{name}]", *(f"{key} = {format_value(value)}" for key, value in fields.items())]
    head = f"{text.rstrip()}\n\n" if text.strip() else ""
    return "\n".join([f"{head}{lines[0]}", *lines[1:], ""])


def remove_table(text: str, name: str) -> str | None:
    """The text without the server's table and the tables below it; None if that can't be done line by line."""
    kept, skipping = list[str](), False
    for line in text.splitlines(keepends=True):
        if header := _HEADER.fullmatch(line.rstrip("\r\n")):
            keys = [key.strip().strip("\"'") for key in header["keys"].split(".")]
            skipping = keys[:3] == ["mcp", "servers", name]
        if not skipping:
            kept.append(line)
    found = "".join(kept)
    try:
        before, after = tomllib.loads(text), tomllib.loads(found)
        del before["mcp"]["servers"][name]
    except (ValueError, KeyError, TypeError):
        return None
    for data in (before, after):  # a table that is left empty says nothing
        if not data.get("mcp", {}).get("servers", True):
            del data["mcp"]["servers"]
        if not data.get("mcp", True):
            del data["mcp"]
    return (f"{found.rstrip()}\n" if found.strip() else "\n") if before == after else None


def replace_text(file: Path, text: str) -> None:
    """Replace the file's text in place: an agent that works in its directory could write to a new file.

    Where that fails the file has its former text.
    """
    try:
        with open(file, "r+b", buffering=0) as opened:
            former = opened.read()
            try:
                _write(opened, text.encode())
            except OSError:
                with contextlib.suppress(OSError):
                    _write(opened, former)
                raise
    except OSError as error:
        raise Failed(f"{file}: can't be written: {error.strerror}") from None


def _write(file: RawIOBase, data: bytes) -> None:
    file.seek(0)
    write_all(file, data)
    file.truncate(len(data))


def format_value(value: object) -> str:
    """A value as TOML in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = (f"{format_key(str(key))} = {format_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(format_value, value))}]"
    raise TypeError(f"no TOML for {printable(repr(value))}")


def format_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else format_value(key)
