"""What a shell command is once it is understood: the simple commands it is made of, and where they read and write."""

from attrs import frozen


class NotUnderstood(ValueError):
    """A command that can't be judged: it isn't clear what the shell would make of it. The text says what and where."""


@frozen
class Word:
    """One word of a command.

    ``text`` is its value after quote removal, ``None`` where only the shell will know: ``$x``, ``$(...)``, ``*.py``,
    ``~user``, ``{a,b}``. ``several``: it may become any number of arguments, none included.
    """

    text: str | None
    source: str
    several: bool = False


@frozen
class Simple:
    """One simple command. ``assignments`` are the names set in front of it: ``PATH`` in ``PATH=. ls``."""

    words: tuple[Word, ...]
    source: str
    assignments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.source


@frozen
class Redirect:
    """A file that the shell itself opens: ``> log``, ``< data``."""

    target: Word
    writes: bool
    source: str


@frozen
class Script:
    """All that a command may run and open, in the order it is written in, what is nested after what it is nested in.

    ``opaque`` names, in words, what may run or set things that can't be seen: only a grant of every command lets that
    pass.
    """

    source: str
    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    opaque: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.source
