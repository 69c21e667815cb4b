"""Puts words and operators together to simple commands, at one level of a text: the text itself, or one ``$(...)``."""

import re
from typing import Literal

from attrs import Factory, define

from .effects import find_effects
from .programs import RESERVED, RUNNERS
from .reading import Command, Redirect, Word
from .variables import is_plain

Mode = Literal["commands", "data", "for", "case", "in", "pattern", "test", "name"]

MAX_PIECES = 10_000  # words, commands and substitutions: more are not looked at
MAX_NESTING = 30  # of commands in the arguments of commands, and of texts in texts
ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)", re.ASCII)
MODES: dict[str, Mode] = {"for": "for", "select": "for", "case": "case", "function": "name", "[[": "test"}


@define
class Findings:
    """All that was found so far in a text and in the texts nested in it."""

    construct: str | None = None  # the first that is not in the subset
    commands: list[Command] = Factory(list)
    redirects: list[Redirect] = Factory(list)
    texts: list[tuple[str, int]] = Factory(list)  # nested texts that are still to be read, and how deep each is
    code: list[str] = Factory(list)
    pieces: int = 0
    changed_directory: bool = False  # by a ``cd``
    complete: bool = True

    def note_construct(self, construct: str) -> None:
        self.construct = self.construct or construct

    def add_command(self, command: Command, depth: int) -> None:
        """Adds a command, and those in its arguments."""
        waiting = [(command, depth)]
        while waiting and self.complete:
            each, level = waiting.pop()
            self.count_piece()
            self.complete &= level <= MAX_NESTING
            self.commands.append(each)
            self.changed_directory |= each.words[0].text == "cd"
            what = find_effects(each)
            if what.construct is not None:
                self.note_construct(what.construct)
            for inner in what.commands:
                if what.guessed and inner.name in RUNNERS:
                    self.commands.append(inner)  # what it may run is guessed as well
                else:
                    waiting.append((inner, level + 1))
            self.texts += [(text, level + 1) for text in what.texts]

    def count_piece(self) -> None:
        """One more word, command or substitution."""
        self.pieces += 1
        self.complete &= self.pieces <= MAX_PIECES


@define(eq=False)
class Frame:
    """One level. ``closer`` ends it, or ``limit``, an index in the text, whichever comes first.

    The scanner collects a word in the attributes from ``start`` (-1: none is begun) to ``braces``.
    """

    findings: Findings
    closer: str
    limit: int
    depth: int = 0
    mode: Mode = "commands"
    in_backquotes: bool = False
    start: int = -1
    value: list[str] = Factory(list)
    known: bool = True
    several: bool = False
    bracket: int = -1  # the index of the first unquoted one
    braces: bool = False
    _words: list[Word] = Factory(list)
    _begun: bool = False  # the present command has an assignment, a redirection or a reserved word
    _operator: str = ""  # of a redirection that has no target yet
    _joined: str = ""  # the operator in front of the present command
    _input: str | None = None
    _timed: bool = False
    _cases: int = 0

    def take_word(self, end: int, text: str) -> None:
        """Ends the word that was begun, if one was."""
        if self.start < 0:
            return
        source = text[self.start : end]
        known, several = self.known, self.several
        if (self.bracket >= 0 and "]" in text[self.bracket : end]) or (self.braces and expands_braces(source)):
            known, several = False, True
        word = Word("".join(self.value) if known else None, source, several and not known)
        self.start, self.value, self.known, self.several = -1, [], True, False
        self.bracket, self.braces = -1, False
        self.findings.count_piece()
        if self._operator:
            self._take_target(word)
        else:
            self._take_next(word)

    def redirect(self, operator: str) -> None:
        if self._operator:
            self.findings.note_construct("a redirection without a file")
        self._operator, self._begun = operator, True

    def begin_commands(self) -> None:
        """After ``f()``: the name is no command, what follows is."""
        self._words.clear()
        self.mode = "commands"

    @property
    def is_empty(self) -> bool:
        """Whether the next word is in command position."""
        return self.mode == "commands" and not self._words and not self._operator

    @property
    def expects_file(self) -> bool:
        """Whether a redirection has no target yet."""
        return self._operator != ""

    def close_pattern(self) -> None:
        self.mode, self._begun = "commands", False

    def end_command(self, operator: str) -> None:
        """Ends the present command. ``operator`` is the separator, empty at the end of the text."""
        note = self.findings.note_construct
        if self._operator:
            note("a redirection without a file")
            self._operator = ""
        if self.mode == "for":
            self.mode = "commands"
        if not self._words and not self._begun:
            if operator not in ("\n", "") or (operator == "" and self._joined):
                note("an operator without a command")
            if operator == "\n":
                return  # `a |` and a command on the next line
        name = None
        if self._words and not (self._timed and self._words[0].text is None):
            command = Command(tuple(self._words), self._input)
            self.findings.add_command(command, self.depth)
            name = command.name
        if operator.startswith(";") and len(operator) > 1 and self._cases:
            self.mode = "pattern"
        self._words.clear()
        self._joined = operator if operator in ("&&", "||", "|") else ""
        self._input = name if operator in ("|", "|&") else None
        self._begun = self._timed = False

    def _take_target(self, word: Word) -> None:
        operator, self._operator = self._operator, ""
        if operator in ("<<<", "<&") or (operator == ">&" and re.fullmatch(r"[0-9]+-?|-", word.text or "")):
            return
        if word.text is None:
            self.findings.note_construct("a redirection to a name that is not known before it runs")
        elif word.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self.findings.note_construct("a redirection to the network")
        elif self.findings.changed_directory and not word.text.startswith("/"):
            self.findings.note_construct("a redirection to a relative path after `cd`")
        self.findings.redirects.append(Redirect(operator, word))

    def _take_next(self, word: Word) -> None:
        """A word that is no target, in the place where it stands."""
        source = word.source
        match self.mode:
            case "commands":
                self._take_command_word(word)
            case "for" if source == "do":
                self.mode = "commands"
            case "case":
                self.mode = "in"
            case "in":
                self.mode = "pattern" if source == "in" else "in"
            case "pattern" if source == "esac":
                self.mode, self._cases, self._begun = "commands", self._cases - 1, True
            case "test" if source == "]]":
                self.mode = "commands"
            case "name":
                self.mode = "commands"

    def _take_command_word(self, word: Word) -> None:
        source = word.source
        if self._words or (self._timed and source in ("-p", "--")):
            self._words += [word] if self._words else []
        elif source in RESERVED:
            self._take_reserved_word(source)
        elif assigns := ASSIGNS.match(source):
            self._begun = True
            value = word.text.partition("=")[2] if word.text is not None and assigns[2] == "=" else None
            if value is None or not is_plain(assigns[1], value):
                self.findings.note_construct(f"setting {assigns[1]}")
        else:
            self._words.append(word)

    def _take_reserved_word(self, source: str) -> None:
        self.findings.note_construct(f"the reserved word `{source}`")
        self.mode = MODES.get(source, "commands")
        self._begun = True
        self._timed = source == "time"
        self._cases += (source == "case") - (source == "esac" and self._cases > 0)


def expands_braces(source: str) -> bool:
    """Whether a word may be several, as ``{a,b}`` is and ``stash@{0}`` is not."""
    inside = source[source.find("{") : source.rfind("}") + 1]
    return "," in inside or ".." in inside
