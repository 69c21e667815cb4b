"""Permission sets in a configuration file: the ``[permissions.NAME]`` tables, and those of an agent."""

import os
from collections.abc import Mapping, Sequence

from agentos.agents.life.life import home
from agentos.agents.spec import NAME, NAME_RULE
from agentos.config.reader import Reader
from agentos.config.toml_lines import Keys
from agentos.permissions.levels import LEVELS
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet
from agentos.permissions.sets.files import BadSet, check_secrets, read_set
from agentos.sandbox.files.root_files import CODE, WORKSPACE
from agentos.services.http.secrets import SecretSettings

Known = Mapping[str, PermissionSet]


def read_permissions(reader: Reader, data: object, secrets: Mapping[str, SecretSettings]) -> dict[str, PermissionSet]:
    """Permission sets by name; ``secrets`` are those there are, by name.

    An invalid set is replaced by ``minimal``, so that references to it are no mistakes.
    """
    found: dict[str, PermissionSet] = {}
    if not isinstance(data, dict):
        reader.mistakes.append((("permissions",), "expected a table for each set, [permissions.NAME]"))
        return found
    for name, table in data.items():
        keys = ("permissions", name)
        if name in LEVELS:
            reader.mistakes.append((keys, f"{name!r} is a level: choose another name"))
        elif not NAME.fullmatch(name):
            reader.mistakes.append((keys, f"expected {NAME_RULE}, got {name!r}"))
        found[name] = _read(reader, table, f"permissions.{name}", {}, keys, secrets) or LEVELS["minimal"]
    return found


def read_agent_permissions(
    reader: Reader, data: object, name: str, known: Known, keys: Keys, secrets: Mapping[str, SecretSettings]
) -> PermissionSet | None:
    """Read ``permissions = ...`` of the agent ``name``: a level, one of the ``known`` sets, or a set of its own."""
    source = f"permissions of {name}"
    return None if data is None else _read(reader, data, source, known, (*keys, "permissions"), secrets)


def _read(
    reader: Reader, data: object, source: str, known: Known, keys: Keys, secrets: Mapping[str, SecretSettings]
) -> PermissionSet | None:
    names = Names(home(), config=str(reader.directory), workspace=WORKSPACE, code=CODE)
    try:
        found = read_set(data, source, known, names)
        check_secrets(found, secrets)
    except BadSet as error:
        reader.mistakes += [((*keys, *inner), message) for inner, message in error.mistakes]
        return None
    if isinstance(data, dict):
        _check_directories(reader, data.get("allow", {}), keys)
    return found


def _check_directories(reader: Reader, allowed: Mapping[str, Sequence[str]], keys: Keys) -> None:
    """Report a grant with a directory's bare name: it would grant nothing, since only files are read or written."""
    for kind in ("read", "write"):
        for index, text in enumerate(allowed.get(kind, ())):
            if text.startswith(("/", "~/")) and os.path.isdir(path := os.path.expanduser(text)) and path[-1] != "/":
                message = f"{text} is a directory: write {text}/** for what is in it"
                reader.mistakes.append(((*keys, "allow", kind, index), message))
