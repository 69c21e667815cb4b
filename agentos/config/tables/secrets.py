"""Secrets of HTTP requests in a configuration file: the ``[[http.secrets]]`` tables."""

import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from agentos.config.reader import Reader, ReadTable
from agentos.permissions.patterns.base import BadPattern
from agentos.permissions.patterns.domains import DomainPattern, parse_domain_pattern
from agentos.services.http.request import CONNECTION_HEADERS
from agentos.services.http.secrets import SecretSettings

REQUIRED = ("name", "host", "header", "value_from")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
HEADER = re.compile(r"(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100})(?:: (?P<prefix>[!-~](?:[ -~]{0,100}[!-~])?))?")
SOURCE = re.compile(r"env:(?P<variable>[A-Za-z_][A-Za-z0-9_]*)|file:(?P<path>[^\x00]+)")
NO_SECRETS = CONNECTION_HEADERS | {"content-encoding", "accept-encoding"}


@frozen(kw_only=True)
class SecretTable:
    """One table of ``[[http.secrets]]``: see ``agentos.services.http.secrets.SecretSettings``."""

    name: str = ""
    host: str = ""
    header: str = ""
    value_from: str = ""
    methods: Sequence[str] | None = None
    paths: Sequence[str] | None = None


def read_secrets(reader: Reader, tables: Sequence[object]) -> tuple[SecretSettings, ...]:
    """Read the tables; one with a mistake still has its name, so that references to it are no mistakes."""
    found: dict[str, SecretSettings] = {}
    for index, data in enumerate(tables):
        read = reader.read(SecretTable, data, ("http", "secrets", index))
        table: SecretTable = read.table
        for key in REQUIRED:
            if not getattr(table, key) and key not in read.invalid and isinstance(data, dict):
                reader.add_mistake(read, "required field missing", key)
        if table.name and not NAME.fullmatch(table.name):
            reader.add_mistake(read, "expected up to 64 letters, digits, '_', '-' and '.'", "name")
        if table.name in found:
            reader.add_mistake(read, f"the name {table.name!r} is taken by another secret", "name")
        header, source = _read_header(reader, read), read_source(reader, read, "value_from")
        found[table.name] = SecretSettings(table.name, tuple(_read_places(reader, read)), *header, source)
    return tuple(found.values())


def _read_header(reader: Reader, read: ReadTable) -> tuple[str, str]:
    """The header's name, and what comes before the value in it."""
    text = read.table.header
    parts = HEADER.fullmatch(text)
    if parts is None:
        if text:
            example = "expected a header's name, or name and the word before the value: 'Authorization: Bearer'"
            reader.add_mistake(read, example, "header")
        return "", ""
    if parts["name"].lower() in NO_SECRETS:
        reader.add_mistake(read, f"the kernel sets {parts['name']} itself", "header")
    return parts["name"], f"{parts['prefix']} " if parts["prefix"] else ""


def read_source(reader: Reader, read: ReadTable, key: str) -> str:
    """Where a field ``key`` says that a secret value is, with an absolute path; empty if that is missing or wrong."""
    text: str = getattr(read.table, key) or ""
    parts = SOURCE.fullmatch(text)
    if parts is None:
        if text:  # which may be the secret itself, so it isn't shown
            reader.add_mistake(read, "expected where the value is, as 'env:NAME' or 'file:PATH'", key)
        return ""
    return f"file:{reader.resolve_path(parts['path'])}" if parts["path"] else text


def _read_places(reader: Reader, read: ReadTable) -> Sequence[DomainPattern]:
    """A pattern for each path, or one without a path."""
    table: SecretTable = read.table
    host = _parse(reader, read, table.host, "host") if table.host else None
    if host is None:
        return []
    if host.host is None or host.is_hidden:
        reader.add_mistake(read, "expected one host, with a port if it isn't 443, as in 'api.github.com'", "host")
        return []
    has_port = host.ports is not None and len(host.ports) == 1
    where = table.host if has_port else f"{table.host}:443"
    methods = f"{','.join(table.methods)} " if table.methods is not None else ""
    if methods and _parse(reader, read, f"{methods}{where}", "methods") is None:
        return []
    paths: Sequence[str] = [""] if table.paths is None else table.paths
    found: list[DomainPattern] = []
    for index, path in enumerate(paths):
        if path and not path.startswith("/"):
            reader.add_mistake(read, f"expected a path that begins with '/', got {path!r}", "paths", index)
        elif (place := _parse(reader, read, f"{methods}{where}{path}", *_key(table, index))) is not None:
            found.append(place)
    return found


def _key(table: SecretTable, index: int) -> tuple[Any, ...]:
    return ("paths", index) if table.paths is not None else ("host",)


def _parse(reader: Reader, read: ReadTable, text: str, *keys: str | int) -> DomainPattern | None:
    try:
        return parse_domain_pattern(text)
    except BadPattern as error:
        reader.add_mistake(read, str(error), *keys)
        return None
