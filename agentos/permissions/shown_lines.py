"""The text that a person sees of a call, as one string: in each line words of the kernel's, then what it quotes.

    KERNEL'S WORDS [ U+001F QUOTED TEXT ]

What is quoted was chosen by an agent, a server or a file, and is escaped: it has neither a line break nor that mark.
Clients show both in separate elements, so that no quoted text passes for the kernel's, wherever a screen breaks a line.
"""

from collections.abc import Sequence
from typing import Final

MARK: Final = "\x1f"


def split_lines(shown: str) -> Sequence[Sequence[str]]:
    """Each line as ``[words]``, or as ``[words, quoted]``."""
    return [line.split(MARK, 1) for line in shown.split("\n")]


def to_plain(shown: str) -> str:
    """The text without the marks, for what can't show two elements."""
    return shown.replace(MARK, "")
