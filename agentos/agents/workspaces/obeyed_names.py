"""Names at the top of a workspace that programs obey, and that get no stub: a stub would change what these programs do.

They are read-only to the agent where they exist (:mod:`protected_files`), but for those that its tools build. One that
an agent makes is reported when it has ended, for the operator to look at before the program runs there.
docs/reference/protected-names.md explains each.
"""

import os
from collections.abc import Collection, Iterator

from agentos.protected_names import BUILT, OBEYED

from .config_file import list_entries

READERS = {**OBEYED, **BUILT}


def list_held(directory: str, path: str) -> list[str]:
    """The names in a directory by which a path leads where it does: symlinks on the way, and its end.

    Directories on the way are no such names: they are held as the parents of a protected one. Blocks.
    """
    entries = [entry for entry in list_entries(path) if entry.startswith(os.path.join(directory, ""))]
    last = os.path.realpath(path)
    return [os.path.relpath(entry, directory) for entry in entries if entry == last or os.path.islink(entry)]


def find_present(top: str) -> frozenset[str]:
    """Which of ``OBEYED`` and ``BUILT`` there are in a directory. Blocks."""
    return frozenset(name for name in READERS if os.path.lexists(os.path.join(top, name)))


def sentences(new: Collection[str]) -> Iterator[str]:
    """The messages about names that an agent has made."""
    for name in sorted(new):
        yield f"its workspace has a new {name}: {READERS[name]} obeys it, so look at it before that runs there"
