"""The words and operators of a shell text, cut as bash cuts them and with their quotes removed.

Refuses, like expansions, what readers differ about.
"""

import re
from typing import Literal

from attrs import Factory, define, frozen

from .expansions import Expansions, decoded
from .script import Word

MAX_TOKENS = 5_000  # more is no command that anybody could judge

OPERATOR = re.compile(rb"&&|\|\||;;&|;;|;&|\|&|&>>|&>|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>|[;&|()]".decode())
META = " \t\n;&|<>()"
PLAIN = re.compile(r"[^ \t\n;&|<>()'\"\\$`]+")
ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?\+?=", re.ASCII)
SUBSCRIPT_OPEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*\Z")
DIGITS = re.compile(r"[0-9]+(?=[<>])")
NAMED_DESCRIPTOR = re.compile(r"\{[^\s{}]*\}[<>]")
DELIMITER = re.compile(r"(?:'([\w.-]+)'|\"([\w.-]+)\"|\\([\w.-]+)|([\w.-]+))(?=[ \t\n;&|<>()]|\Z)", re.ASCII)
IN_HEREDOC = re.compile(r"[^\\$`]+")


@frozen
class Token:
    """``descriptor`` is the number in front of a redirect, ``arithmetic`` all of ``((...))``."""

    kind: Literal["word", "operator", "newline", "descriptor", "arithmetic"]
    start: int
    end: int
    word: Word | None = None


@define
class Lexer(Expansions):
    """Cuts one text into ``tokens``. ``spent`` counts them with those of the texts nested in it."""

    tokens: list[Token] = Factory(list)
    spent: int = 0
    ends: list[int] = Factory(list)  # where each here-document ends
    pending: list[tuple[str, bool, bool]] = Factory(list)  # here-documents to come: delimiter, literal, tabs stripped

    def run(self, closing: str = "") -> None:
        """Cuts up to the end, or to the ``)`` that closes a substitution."""
        before = "\n"  # of the text: what a word or a comment may follow
        opened = 0
        while True:
            if self.at >= len(self.text):
                if closing:
                    self.refuse("a substitution that is not closed")
                break
            c = self.peek()
            if c in " \t":
                self.at += 1
            elif c == "\\" and self.peek(1, 1) == "\n":
                if before not in " \t\n":
                    self.refuse("a line that goes on in the middle of a word; put a space in front of the backslash")
                self.at += 2
                continue
            elif c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            elif c == "\n":
                self.add("newline", 1)
                self.documents()
            elif c == ")" and closing and not opened:
                break
            else:
                opened += self.token()
            before = self.text[self.at - 1]
        if self.pending:
            self.refuse("a here-document that does not end where it began")

    def add(self, kind: Literal["operator", "newline", "descriptor", "arithmetic"], length: int) -> None:
        self.tokens.append(Token(kind, self.at, self.at + length))
        self.at += length

    def token(self) -> int:
        """Cuts one; returns how many parentheses it opened."""
        self.spent += 1
        if self.spent > MAX_TOKENS:
            self.refuse(f"more than {MAX_TOKENS} words and operators")
        if self.peek(2) in ("<(", ">("):
            self.tokens.append(self.word())
            return 0
        if self.peek(2) == "((":
            start = self.at
            self.at += 2
            with self.deeper():
                self.arithmetic()
            self.tokens.append(Token("arithmetic", start, self.at))
            return 0
        if found := DIGITS.match(self.text, self.at):
            if self.text[found.end() + 1 : found.end() + 2] == "(":
                self.refuse("a process substitution within a word")
            self.add("descriptor", len(found[0]))
            return 0
        if self.peek(3) in (">&-", "<&-") and (self.peek(1, 3) in META):
            self.add("operator", 3)
            return 0
        if found := OPERATOR.match(self.text, self.at):
            self.add("operator", len(found[0]))
            if found[0] in ("<<", "<<-"):
                self.delimiter(found[0] == "<<-")
            return {"(": 1, ")": -1}.get(found[0], 0)
        if NAMED_DESCRIPTOR.match(self.text, self.at):
            self.refuse("a redirect that sets a variable to the file's number")
        self.tokens.append(self.word())
        return 0

    def word(self) -> Token:
        """One word and where it lies."""
        start, parts, bare, several = self.at, list[str | None](), "", False
        while self.at < len(self.text):
            c = self.peek()
            if found := PLAIN.match(self.text, self.at):
                self.printable(found[0])
                parts.append(found[0])
                bare += found[0]
                self.at = found.end()
                continue
            if c == "(" and ASSIGNS.fullmatch(bare):
                with self.deeper():
                    self.array()
                parts.append(None)
                continue
            if c in META and self.peek(2) not in ("<(", ">("):
                break
            part = self.quoted(c)
            parts.append(part.text)
            several |= part.several
            bare += "\0"
        if SUBSCRIPT_OPEN.fullmatch(bare):
            self.refuse("a subscript with spaces or parentheses", start)
        source = self.text[start : self.at]
        if self.pending and "\n" in source:
            self.refuse("a word of several lines before a here-document's text", start)
        known, spread = shape(bare)
        known = known and None not in parts
        text = decoded("".join(part for part in parts if part is not None)) if known else None
        return Token("word", start, self.at, Word(text, decoded(source), several or spread))

    def printable(self, bare: str) -> None:
        if not bare.isascii() and any(c.isspace() or not c.isprintable() for c in decoded(bare)):
            self.refuse("a character outside of quotes that is no letter, digit or sign")

    def substitution(self) -> None:
        """From the parenthesis on, up to behind the one that closes it."""
        nested = Lexer(self.text, self.at + 1, self.depth, spent=self.spent)
        nested.run(")")
        self.spent = nested.spent
        self.inner.append(decoded(self.text[self.at + 1 : nested.at]))
        self.at = nested.at + 1

    def is_substitution(self, token: Token) -> bool:
        """Whether a word is ``<(...)`` or ``>(...)`` and nothing else: a pipe, no file."""
        if self.text[token.start : token.start + 2] not in ("<(", ">("):
            return False
        alone = Lexer(self.text, token.start + 1)
        alone.substitution()
        return alone.at == token.end

    def array(self) -> None:
        """The elements of ``name=(...)``."""
        start = self.at
        self.at += 1
        while self.peek() != ")":
            c = self.peek()
            if c == "":
                self.refuse("a list that is not closed", start)
            if c in " \t\n":
                self.at += 1
            elif c == "#":
                self.at = max(self.text.find("\n", self.at), self.at + 1)
            elif c in META and self.peek(2) not in ("<(", ">("):
                self.refuse("an operator in a list")
            elif c == "\\" and self.peek(1, 1) == "\n" and self.text[self.at - 1] in " \t\n(":
                self.at += 2
            else:
                if c == "[":
                    self.opaque.append("a list with subscripts")
                self.word()
        self.at += 1

    def delimiter(self, stripped: bool) -> None:
        """The word after ``<<``."""
        while self.peek() in (" ", "\t"):
            self.at += 1
        found = DELIMITER.match(self.text, self.at)
        if found is None:
            self.refuse("a here-document's end that is no plain word")
        name = found[1] or found[2] or found[3] or found[4]
        self.pending.append((name, found[4] is None, stripped))
        self.tokens.append(Token("word", self.at, found.end(), Word(name, found[0])))
        self.at = found.end()

    def documents(self) -> None:
        """The texts of the here-documents that the line asked for."""
        for name, literal, stripped in self.pending:
            begin, goes_on = self.at, False
            while True:
                if self.at >= len(self.text):
                    self.refuse(f"a here-document without its end, {name}", begin)
                start = self.at
                end = self.text.find("\n", start)
                self.at = len(self.text) if end < 0 else end + 1
                line = self.text[start : self.at].removesuffix("\n")
                inside = line.lstrip("\t") if stripped else line
                if inside == name and not goes_on:
                    break
                goes_on = not literal and inside.endswith("\\")
                if inside == name or (goes_on and name.startswith(inside[:-1])):
                    self.refuse("a here-document's line that goes on where it may end", start)
            self.ends.append(start + len(line))
            if not literal:
                behind, self.at = self.at, begin
                self.double("", IN_HEREDOC, limit=start)
                self.at = behind
        self.pending.clear()


def shape(bare: str) -> tuple[bool, bool]:
    """Of a word's unquoted part (the rest is NUL): whether it is what it says, and whether it may be several words."""
    if "*" in bare or "?" in bare or ("[" in bare and "]" in bare[bare.index("[") :]):
        return False, True
    if "{" in bare:
        rest = bare[bare.index("{") :]
        if "," in rest or ".." in rest:
            return False, True
    return not (bare.startswith("~") or ":~" in bare or "=~" in bare), False
