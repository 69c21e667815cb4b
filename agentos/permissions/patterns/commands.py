"""Patterns of commands: ``git status``, ``git diff *``, ``python3 -m pytest *``."""

import fnmatch
import re
import shlex
from collections.abc import Callable

from attrs import field, frozen

from agentos.shell.frames import ASSIGNS
from agentos.shell.reading import Command, Word

from .base import BadPattern

OPERATORS = re.compile(r"[;&|<>()$`\n]")
QUOTED = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


@frozen
class CommandPattern:
    """A pattern of words. ``*`` and ``?`` in a word match characters of that word.

    A ``*`` as the last word matches any further arguments. ``*`` alone matches every command, also one that can't be
    analysed: ``universal``. A grant matches the program name as it is typed: ``git`` doesn't grant ``./git``, and no
    wildcard matches a slash. A denial also matches the base name. A word that is unknown before the command runs is
    matched in a grant only by the final ``*``; in a denial it may be anything.
    """

    text: str
    words: tuple[str, ...]
    any_arguments: bool  # whether any further arguments match
    universal: bool = False
    name: str | None = None  # the program's name, if it has no wildcard
    matchers: tuple[Callable[[str], object], ...] = field(default=(), eq=False, repr=False)

    def matches(self, what: Command, *, deny: bool) -> bool:
        if self.universal:
            return True
        words = what.words
        name = words[0].text
        if name != self.name and self.name is not None and name is not None and not (deny and "/" in name):
            return False  # checked first, since it decides nearly every case
        if deny:
            return self.may_match(words)
        if len(words) < len(self.words) or (len(words) > len(self.words) and not self.any_arguments):
            return False
        if name is None or name.count("/") != self.words[0].count("/"):
            return False
        return all(
            word.text is not None and matcher(word.text) for word, matcher in zip(words, self.matchers, strict=False)
        )

    def may_match(self, words: tuple[Word, ...]) -> bool:
        """Whether the words can expand to something that this pattern matches.

        Tracks the set of all positions in the pattern that may be reached after each word.
        """
        end = len(self.words)
        positions = {0}
        for at, word in enumerate(words):
            after = {end} if self.any_arguments and end in positions else set[int]()
            if word.several:
                after |= set(range(min(positions), end + 1))
            else:
                after |= {
                    position + 1
                    for position in positions
                    if position < end and self.may_match_word(position, word, first=at == 0)
                }
            if not after:
                return False
            positions = after
        return end in positions

    def may_match_word(self, position: int, word: Word, *, first: bool) -> bool:
        if word.text is None:
            return True
        matcher = self.matchers[position]
        return bool(matcher(word.text) or (first and matcher(word.text.rpartition("/")[2])))

    def covers(self, other: "CommandPattern", *, deny: bool) -> bool:
        if self.universal or other.universal:
            return self.universal
        ours, theirs = len(self.words), len(other.words)
        if theirs < ours or ((theirs > ours or other.any_arguments) and not self.any_arguments):
            return False
        name, known = other.words[0], self.words[0]
        named = name.count("/") == known.count("/") and self.includes_word(0, name)
        if deny:
            named = self.includes_word(0, name) or self.includes_word(0, name.rpartition("/")[2])
        return named and all(self.includes_word(at, other.words[at]) for at in range(1, ours))

    def includes_word(self, position: int, word: str) -> bool:
        """Whether our word at ``position`` matches everything that the word of another pattern matches."""
        ours = self.words[position]
        return ours == word or (not ("*" in word and "?" in ours) and bool(self.matchers[position](word)))


def parse_command_pattern(text: str) -> CommandPattern:
    """Parse a command pattern; raises ``BadPattern`` if it can never match a simple command."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadPattern(f"{text!r}: a quote that is not closed") from error
    if not words:
        raise BadPattern("an empty pattern; write the command's words, or * for every command")
    if words == ["*"]:
        return CommandPattern(text, (), any_arguments=True, universal=True)
    if operator := OPERATORS.search(QUOTED.sub("", text)):
        raise BadPattern(
            f"{text!r}: a pattern is one simple command and {operator[0]!r} is none of its words; "
            "write a pattern for each command, or quote what is meant literally"
        )
    if ASSIGNS.match(words[0]):
        raise BadPattern(
            f"{text!r}: variables that are set in front of a command are no part of its words; leave them out"
        )
    if "\0" in text or not words[0]:
        raise BadPattern(f"{text!r}: no command has such a name")
    any_arguments = words[-1] == "*" and len(words) > 1
    if any_arguments:
        words.pop()
    name = None if "*" in words[0] or "?" in words[0] else words[0]
    return CommandPattern(
        text, tuple(words), any_arguments, name=name, matchers=tuple(compile_matcher(word) for word in words)
    )


def compile_matcher(word: str) -> Callable[[str], object]:
    if "*" not in word and "?" not in word:
        return word.__eq__
    return re.compile(fnmatch.translate(word.replace("[", "[[]"))).match
