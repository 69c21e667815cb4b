"""What all kinds of patterns in a permission set share: the protocol, the variables, and the error."""

from typing import Any, Protocol

from msgspec import Struct


class BadPattern(ValueError):
    """An invalid pattern, or one that can never match; the text says what to write instead."""


class Names(Struct, frozen=True):
    """The values of ``~`` and ``${...}`` in patterns. ``None``: a pattern with that variable matches nothing.

    ``home`` is the operator's home, ``config`` the directory of the configuration file. ``workspace`` and ``code`` are
    those of a jailed caller.
    """

    home: str
    config: str | None = None
    workspace: str | None = None
    code: str | None = None


class Pattern(Protocol):
    """A parsed pattern; ``text`` is its source."""

    @property
    def text(self) -> str: ...

    def matches(self, what: Any, *, deny: bool) -> bool:
        """Whether it matches. In a denial or a question a pattern may match more than in a grant."""

    def covers(self, other: Any, *, deny: bool) -> bool:
        """Whether this pattern matches everything that ``other``, a grant of the same kind, matches.

        It may miss that (False where True is right), but True is always right.
        """
