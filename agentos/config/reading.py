"""Reading one file's tables: each as far as it can be read, with every mistake on the way."""

import os
from pathlib import Path
from typing import Any, TypeVar

import attrs

from agentos.config.lines import Keys
from agentos_sdk.codec import Invalid, decode

T = TypeVar("T")


@attrs.frozen
class Read:
    """A table as far as it could be read: which of its fields are wrong, and so have their defaults here."""

    keys: Keys
    table: Any
    wrong: frozenset[str]

    def given(self, *without: str) -> dict[str, Any]:
        """What the file says, without the fields that are made into something else."""
        said = attrs.asdict(self.table, recurse=False).items()
        return {name: value for name, value in said if value is not None and name not in without}


class Reader:
    """``mistakes`` grows while a file is read, and only without any is the result of use. Relative paths begin at
    ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mistakes: list[tuple[Keys, str]] = []

    def read(self, cls: type[T], data: object, keys: Keys) -> Read:
        """What can be read of a table; where a field is wrong or missing, a stand-in takes its place."""
        try:
            return Read(keys, decode(cls, data), frozenset())
        except Invalid as error:
            found = error.mistakes
        self.mistakes += [((*keys, *mistake.keys), mistake.message) for mistake in found]
        wrong = frozenset(str(mistake.keys[0]) for mistake in found if mistake.keys)
        known = attrs.fields_dict(cls)  # type: ignore[arg-type]
        rest = data if isinstance(data, dict) else {}
        kept = {name: value for name, value in rest.items() if name in known and name not in wrong}
        if "name" in known:
            kept.setdefault("name", "nameless")
        return Read(keys, decode(cls, kept), wrong)

    def place(self, place: str | None) -> str | None:
        """A path that the file names, made absolute."""
        return None if place is None else str(self.directory / os.path.expanduser(place))

    def wrong(self, read: Read, message: str, *keys: str | int) -> None:
        """Note a mistake in a table, at ``keys`` beneath it."""
        self.mistakes.append(((*read.keys, *keys), message))
