"""Arguments of the clients' methods as fields of a request: paths made absolute, bytes as text."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

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


def as_body(body: object, encoding: Encoding | None) -> tuple[object, Encoding | None]:
    """The ``body`` of HTTP and its encoding: text and bytes as :func:`as_text`, what is sent as JSON unchanged."""
    return as_text(body, encoding or "utf-8") if isinstance(body, str | bytes) else (body, encoding)


def absolute_cwd(cwd: str | None, name: str | None, agent_id: int | None) -> str | None:
    """The ``cwd`` of EXEC: made absolute, unless an agent is named, since then it is a path in its jail."""
    return cwd if cwd is None or name is not None or agent_id is not None else make_absolute(cwd)


def make_paths_absolute(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SPAWN with relative paths made absolute by this process's directory, and None left out."""
    fields = {name: value for name, value in fields.items() if value is not None}
    jailed = fields.get("sandboxed", True) and fields.get("isolation") != "none"
    for name in ("script", "code", "workspace"):
        if name in fields and fields[name] not in ("tmp", "keep"):
            fields[name] = os.path.abspath(os.path.expanduser(fields[name]))
    if not jailed:  # otherwise it is a directory in the jail
        fields["cwd"] = os.path.abspath(os.path.expanduser(fields.get("cwd", os.curdir)))
    if "/" in fields.get("python", ""):
        fields["python"] = os.path.abspath(os.path.expanduser(fields["python"]))
    if fields.get("command"):
        program, *rest = fields["command"]
        fields["command"] = [os.path.abspath(os.path.expanduser(program)) if "/" in program else program, *rest]
    return fields
