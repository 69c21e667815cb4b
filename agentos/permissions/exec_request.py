"""A command as a caller wants it run: what is judged, and what the audit log shows."""

import os.path
import re
from typing import Final

from attrs import frozen

from agentos.shell.reading import Command, Reading, Redirect

MOVES: Final = frozenset({"cd", "pushd", "popd", ".", "source"})  # change the directory of what follows
ELSEWHERE: Final = {  # programs that run their command in another directory, and by which options
    "env": re.compile(r"-[^-]*C|--c"),
    "find": re.compile(r"-(exec|ok)dir"),
    "unshare": re.compile(r"-[^-]*w|--w"),
    "nsenter": re.compile(r"-[^-]*[wW]|--w"),
}


@frozen
class Wanted:
    """``directory`` is the working directory, an absolute path of the jail's or the host's. ``variables`` are the names
    in the request's ``env`` that are not known to be harmless."""

    reading: Reading
    directory: str
    jailed: bool
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.reading.text

    def places(self) -> tuple[tuple[Redirect, str | None], ...]:
        """Each redirection with the path that it means; ``None`` where that is not known."""
        moves = any(map(_moves, self.reading.commands))
        return tuple((redirect, self._place(redirect.target.text, moves)) for redirect in self.reading.redirects)

    def _place(self, target: str | None, moves: bool) -> str | None:
        if target is None or (moves and not os.path.isabs(target)):
            return None
        return "/" + os.path.normpath(os.path.join(self.directory, target)).lstrip("/")


def _moves(command: Command) -> bool:
    """Whether what it runs, or what follows it, may be in another directory."""
    option = ELSEWHERE.get(command.name)
    return command.name in MOVES or (
        option is not None and any(word.text is None or option.match(word.text) for word in command.words[1:])
    )
