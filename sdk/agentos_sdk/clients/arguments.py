"""Arguments of the clients' methods as fields of a request: paths made absolute, bytes as text."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    Prepare = Callable[[dict[str, Any]], None]
    Encoding = Literal["utf-8", "base64"]

MAX_ESCAPES = 1 << 19  # escapes; a kernel refuses bodies with a million


def make_absolute(path: str) -> str:
    """A path made absolute by this process's directory; ``~`` is left to the kernel, as the operator's home."""
    path = os.fspath(path)
    return path if path.startswith(("/", "~")) or not path else f"{os.getcwd()}/{path}"


def as_text(content: str | bytes, encoding: Encoding) -> tuple[str, Encoding]:
    """Content as text, and its encoding. Base64 is used for bytes, and for text with many escapes (parsed faster)."""
    if isinstance(content, str):
        if encoding == "base64" or sum(map(content.count, '\n"\\\t\r')) < MAX_ESCAPES:
            return content, encoding
        content = content.encode("utf-8", "surrogatepass")
    from binascii import b2a_base64

    return b2a_base64(content, newline=False).decode(), "base64"


def _spawn(fields: dict[str, Any]) -> None:
    """Relative paths are made absolute by this process's directory; ``cwd`` only outside of a jail."""
    jailed = fields.get("sandboxed", True) and fields.get("isolation") != "none"
    for name in ("script", "code", "workspace"):
        if name in fields and fields[name] not in ("tmp", "keep"):
            fields[name] = os.path.abspath(os.path.expanduser(fields[name]))
    if not jailed:  # otherwise it is a directory in the jail
        fields["cwd"] = os.path.abspath(os.path.expanduser(fields.get("cwd", os.curdir)))
    if "image" in fields:  # a program's path is one in the image
        return
    if "/" in fields.get("python", ""):
        fields["python"] = os.path.abspath(os.path.expanduser(fields["python"]))
    if fields.get("command"):
        program, *rest = fields["command"]
        fields["command"] = [os.path.abspath(os.path.expanduser(program)) if "/" in program else program, *rest]


def _read(fields: dict[str, Any]) -> None:
    path: Any = fields.get("path")
    fields["path"] = make_absolute(path)


def _import(fields: dict[str, Any]) -> None:
    if "path" in fields:  # without one the kernel refuses it: these methods send no CHUNK frames
        _read(fields)


def _write(fields: dict[str, Any]) -> None:
    _read(fields)
    content: Any = fields.get("content")
    fields["content"], fields["encoding"] = as_text(content, fields.get("encoding", "utf-8"))


def _exec(fields: dict[str, Any]) -> None:
    """``cwd`` is made absolute, unless an agent is named, since then it is a path in its jail."""
    command: Any = fields.get("command")
    fields["command"] = command if isinstance(command, str) else list(command)
    if "cwd" in fields and "name" not in fields and "id" not in fields:
        fields["cwd"] = make_absolute(fields["cwd"])


def _http(fields: dict[str, Any]) -> None:
    """A ``body`` of text or bytes is sent as text; what is sent as JSON is left."""
    if isinstance(fields.get("body"), str | bytes):
        fields["body"], fields["encoding"] = as_text(fields["body"], fields.get("encoding", "utf-8"))


# By opcode, as in `Calls._fields`.
PREPARE: dict[int, Prepare] = {0x02: _read, 0x03: _write, 0x04: _exec, 0x10: _spawn, 0x35: _import, 0x50: _http}
