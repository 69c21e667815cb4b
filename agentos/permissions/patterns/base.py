"""What all kinds of patterns in a permission set have in common."""

from typing import Any, Protocol

from attrs import frozen


class BadPattern(ValueError):
    """No pattern, or one that can never match anything; the text says what to write instead."""


@frozen
class Names:
    """What ``~`` and ``${...}`` in a pattern stand for. ``None``: a pattern with it matches nothing.

    ``home`` is the operator's, ``config`` the configuration file's directory; ``workspace`` and ``code`` are a jailed
    caller's own.
    """

    home: str
    config: str | None = None
    workspace: str | None = None
    code: str | None = None


class Pattern(Protocol):
    """One pattern, as it was written in ``text``."""

    @property
    def text(self) -> str: ...

    def matches(self, what: Any, *, deny: bool) -> bool:
        """Whether it means this. A denial, or a question, may mean more than a grant that is written alike."""

    def covers(self, other: Any, *, deny: bool) -> bool:
        """Whether everything that ``other``, of the same kind and a grant, can mean is meant by this one too.

        It may overlook that, but never claims it wrongly.
        """
