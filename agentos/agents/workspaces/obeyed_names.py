"""Names at the top of a workspace that programs obey, and that get no stub: a stub would change what these programs do.

They are read-only to the agent where they exist (:mod:`protected_files`), but for those that its tools build. One that
an agent makes is reported when it has ended, for the operator to look at before the program runs there. So are links in
``.git``: `git add` writes the index, with names that the agent chose, to where ``.git/index`` leads.
docs/reference/protected-names.md explains each.
"""

import contextlib
import os
from collections.abc import Collection, Iterator

from agentos.protected_names import BUILT, OBEYED
from agentos.sandbox.files import openat2

from .config_file import list_entries
from .nested_repositories import printable_path

READERS = {**OBEYED, **BUILT}
WRITTEN = (".git", ".git/info", ".git/logs", ".git/logs/refs/heads", ".git/refs", ".git/refs/heads")  # by git


def list_held(directory: str, path: str) -> list[str]:
    """The names in a directory by which a path leads where it does: symlinks on the way, and its end.

    Directories on the way are no such names: they are held as the parents of a protected one. Blocks.
    """
    entries = [entry for entry in list_entries(path) if entry.startswith(os.path.join(directory, ""))]
    last = os.path.realpath(path)
    return [os.path.relpath(entry, directory) for entry in entries if entry == last or os.path.islink(entry)]


def find_present(top: str) -> frozenset[str]:
    """Which of ``OBEYED`` and ``BUILT`` there are in a directory, and links where git writes. Blocks."""
    return frozenset((*(name for name in READERS if os.path.lexists(os.path.join(top, name))), *_find_links(top)))


def _find_links(top: str) -> Iterator[str]:
    flags, resolve = os.O_RDONLY | os.O_DIRECTORY, openat2.WITHIN | openat2.NO_LINKS
    with contextlib.suppress(OSError), openat2.opened(-1, top, flags, openat2.NO_LINKS) as directory:
        for place in WRITTEN:
            with (
                contextlib.suppress(OSError),
                openat2.opened(directory, place, flags, resolve) as fd,
                os.scandir(fd) as entries,
            ):
                yield from (f"{place}/{entry.name}" for entry in entries if entry.is_symlink())


def sentences(new: Collection[str]) -> Iterator[str]:
    """The messages about names that an agent has made."""
    for name in sorted(READERS.keys() & new):
        yield f"its workspace has a new {name}: {READERS[name]} obeys it, so look at it before that runs there"
    links = sorted({*new} - READERS.keys())
    if links:
        more = f" and {len(links) - 1} more" * (len(links) > 1)
        first = printable_path(links[0])
        yield f"its workspace has a new link {first}{more}: git writes to where it leads, so remove it"
