"""A command as a caller wants it run: what is judged, and what the audit log shows."""

import json
import os.path
import re
from typing import Final

from msgspec import Struct

from agentos.shell.reading import Command, Reading, Redirect

DIRECTORY_CHANGERS: Final = frozenset({"cd", "pushd", "popd", ".", "source"})  # change the directory of what follows
DIRECTORY_OPTIONS: Final = {  # programs that run their command in another directory, and by which options
    "env": re.compile(r"-[^-]*C|--c"),
    "find": re.compile(r"-(exec|ok)dir"),
    "unshare": re.compile(r"-[^-]*w|--w"),
    "nsenter": re.compile(r"-[^-]*[wW]|--w"),
}


class ExecRequest(Struct, frozen=True):
    """``directory`` is the working directory, an absolute path of the jail's or the host's. ``variables`` are the names
    in the request's ``env`` that are not known to be harmless. ``given`` is a digest of what else the command gets:
    its environment and standard input; empty if that is nothing."""

    reading: Reading
    directory: str
    jailed: bool
    variables: tuple[str, ...] = ()
    given: str = ""

    def __str__(self) -> str:
        return self.reading.text

    @property
    def exact_text(self) -> str:
        """The text that no other command has: quoted, a command can't contain what looks like its directory."""
        place = "" if self.jailed else "the host directory "
        given = f" with {self.given}" if self.given else ""
        return f"{quote_json(self.reading.text)} in {place}{quote_json(self.directory)}{given}"

    def redirect_paths(self) -> tuple[tuple[Redirect, str | None], ...]:
        """Each redirection with the path that it means; ``None`` where that is not known."""
        changes_directory = any(map(_may_change_directory, self.reading.commands))
        return tuple(
            (redirect, self._redirect_path(redirect.target.text, changes_directory))
            for redirect in self.reading.redirects
        )

    def _redirect_path(self, target: str | None, changes_directory: bool) -> str | None:
        if target is None or (changes_directory and not os.path.isabs(target)):
            return None
        return "/" + os.path.normpath(os.path.join(self.directory, target)).lstrip("/")


def quote_json(text: str) -> str:
    """The text as a JSON string, with what isn't ASCII as it is."""
    return json.dumps(text, ensure_ascii=False)


def _may_change_directory(command: Command) -> bool:
    """Whether what it runs, or what follows it, may be in another directory."""
    option = DIRECTORY_OPTIONS.get(command.name)
    return command.name in DIRECTORY_CHANGERS or (
        option is not None and any(word.text is None or option.match(word.text) for word in command.words[1:])
    )
