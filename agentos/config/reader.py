"""Table reader: reads as much of each table as is valid and collects all mistakes."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import attrs

from agentos.agents.spec import BadField, HostFault
from agentos_sdk.encoding.codec import Invalid, decode

from .toml_lines import Keys

T = TypeVar("T")


@attrs.frozen
class ReadTable:
    """The valid part of a table. Fields in ``invalid`` have their defaults here."""

    keys: Keys
    table: Any
    invalid: frozenset[str]

    def present_fields(self, *without: str) -> dict[str, Any]:
        """The fields set in the file, except those in ``without``, which are converted separately."""
        fields = attrs.asdict(self.table, recurse=False).items()
        return {name: value for name, value in fields if value is not None and name not in without}


class Reader:
    """Reads tables and collects ``mistakes``; the result is usable only without mistakes.

    ``faults`` are what one agent or MCP server names and this host lacks: the keys, the message, and its name. The
    result is usable with these. Relative paths are resolved against ``directory``. The content of ``settled`` files
    isn't checked: a kernel that runs doesn't use it any more, and an agent may have changed it.
    """

    def __init__(self, directory: Path, settled: Collection[str | None] = ()) -> None:
        self.directory = directory
        self.settled = settled
        self.mistakes: list[tuple[Keys, str]] = []
        self.faults: list[tuple[Keys, str, str]] = []

    def read(self, cls: type[T], data: object, keys: Keys) -> ReadTable:
        """Read the valid part of a table; an invalid field gets its default, a missing name a placeholder."""
        try:
            return ReadTable(keys, decode(cls, data), frozenset())
        except Invalid as error:
            found = error.mistakes
        self.mistakes += [((*keys, *mistake.keys), mistake.message) for mistake in found]
        invalid = frozenset(str(mistake.keys[0]) for mistake in found if mistake.keys)
        known = attrs.fields_dict(cls)  # type: ignore[arg-type]
        rest = data if isinstance(data, dict) else {}
        kept = {name: value for name, value in rest.items() if name in known and name not in invalid}
        if "name" in known:
            kept.setdefault("name", "nameless")
        return ReadTable(keys, decode(cls, kept), invalid)

    def resolve_path(self, path: str | None) -> str | None:
        """Make a path from the file absolute."""
        return None if path is None else str(self.directory / os.path.expanduser(path))

    def report(self, read: ReadTable, mistake: BadField) -> None:
        """Report a mistake in a field, unless reading the field failed already."""
        if mistake.keys[0] in read.invalid:
            return
        if isinstance(mistake, HostFault):
            owner = getattr(read.table, "name", None) or f"mcp.{read.keys[-1]}"
            self.faults.append(((*read.keys, *mistake.keys), mistake.message, owner))
        else:
            self.add_mistake(read, mistake.message, *mistake.keys)

    def add_mistake(self, read: ReadTable, message: str, *keys: str | int) -> None:
        """Report a mistake in a table, at ``keys`` beneath it."""
        self.mistakes.append(((*read.keys, *keys), message))
