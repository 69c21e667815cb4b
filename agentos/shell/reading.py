"""What the reader finds in a text: its simple commands and redirections, or the construct that it does not read."""

from typing import TypeAlias

from msgspec import Struct


class Word(Struct, frozen=True):
    """One word of a command.

    ``text`` is its value after quote removal, ``None`` where only bash will know it: ``$x``, ``*.py``, ``~``.
    ``several``: it may become any number of arguments, none included.
    """

    text: str | None
    source: str
    several: bool = False


class Command(Struct, frozen=True):
    """A simple command: the program's name and its arguments, without assignments and redirections.

    ``input`` is the name of the command whose output it reads through ``|``.
    """

    words: tuple[Word, ...]
    input: str | None = None

    @property
    def source(self) -> str:
        return " ".join(word.source for word in self.words)

    @property
    def name(self) -> str:
        """The program's name without its directory; empty where it is not known."""
        return (self.words[0].text or "").rpartition("/")[2]


class Redirect(Struct, frozen=True):
    """A file that bash opens for a command: ``> log``, ``< data``."""

    operator: str
    target: Word

    @property
    def writes(self) -> bool:
        return ">" in self.operator

    @property
    def source(self) -> str:
        return f"{self.operator} {self.target.source}"


class Commands(Struct, frozen=True):
    """A text of simple commands: these run, or some of them, and nothing else."""

    text: str
    commands: tuple[Command, ...]
    redirects: tuple[Redirect, ...]


class Opaque(Struct, frozen=True):
    """A text that may run more than can be read from it. ``construct`` names the first reason.

    ``commands`` and ``redirects`` are those that were found all the same; they are for refusing, never for granting.
    ``code`` is the text without literal strings, comments and literal here-documents. ``complete``: all of the text was
    looked at, so it is within the bounds of :mod:`.reader`.
    """

    text: str
    construct: str
    commands: tuple[Command, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    code: str = ""
    complete: bool = True


Reading: TypeAlias = Commands | Opaque
