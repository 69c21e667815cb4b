"""A command as somebody wants it run: what is judged, and what the audit log is shown."""

import os.path
import re
from typing import Final

from attrs import frozen

from .shell import Redirect, Script, Simple

MOVES: Final = frozenset({"cd", "pushd", "popd", ".", "source"})  # after these nobody knows where a path begins
ELSEWHERE: Final = {  # what runs its command in another directory, and by which options
    "env": re.compile(r"-[^-]*C|--c"),
    "find": re.compile(r"-(exec|ok)dir"),
    "unshare": re.compile(r"-[^-]*w|--w"),
    "nsenter": re.compile(r"-[^-]*[wW]|--w"),
}


@frozen
class Wanted:
    """``directory`` is where it begins, an absolute path of the jail's or the host's. ``variables`` are the names that
    the request sets and that change what a command is: PATH, LD_PRELOAD and the like."""

    script: Script
    directory: str
    jailed: bool
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.script.source

    def places(self) -> tuple[tuple[Redirect, str | None], ...]:
        """Each redirection with the path that it means, as far as that can be told."""
        moves = any(map(_moves, self.script.commands))
        return tuple((redirect, self._place(redirect.target.text, moves)) for redirect in self.script.redirects)

    def _place(self, target: str | None, moves: bool) -> str | None:
        if target is None or (moves and not os.path.isabs(target)):
            return None
        return "/" + os.path.normpath(os.path.join(self.directory, target)).lstrip("/")


def _moves(simple: Simple) -> bool:
    """Whether what it runs, or what follows it, may be in another directory."""
    name = (simple.words[0].text or "").rpartition("/")[2] if simple.words else ""
    option = ELSEWHERE.get(name)
    return name in MOVES or (
        option is not None and any(word.text is None or option.match(word.text) for word in simple.words[1:])
    )
