"""What quotes and expansions in a word mean, and where they end.

Stricter than bash: whatever is rare and read differently by different readers is refused. Positions are bytes in UTF-8:
the text is read as Latin-1, so that a character is a byte.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from attrs import Factory, define, frozen

from .ansi_c import unescaped
from .script import NotUnderstood

DEPTH = 30  # of what is nested in one word
IN_DOUBLE = re.compile(r'[^"\\$`]+')
IN_ANSI = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL)
IN_SUBSCRIPT = re.compile(r"[^\]\['\"\\$`{}]+")
IN_BACKTICKS = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL)
IN_ARITHMETIC = re.compile(r"[^()'\"\\$`]+")
IN_BRACES = re.compile(r"[^'\"\\$`{}<>]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
SIMPLE_BRACES = re.compile(r"#?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|@|\*)(?:\[(?:[@*]|[0-9]+)\])?\}|[#?$!-]\}")
INDIRECT = re.compile(r"![A-Za-z0-9_@*\[\]]*\}")
NAME_IN_BRACES = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])")
PARAMETER_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|\^\^?|,,?|//?|:|@")
NUMBERS = re.compile(r"[0-9 \t+*/%()=!&|^~?:-]*\Z")


@frozen
class Quoted:
    """What a quote or an expansion comes to: its text, if known, and whether it may be several arguments."""

    text: str | None
    several: bool = False


UNKNOWN, UNKNOWN_SEVERAL = Quoted(None), Quoted(None, several=True)


@define
class Expansions:
    """Reads a text from ``at`` on.

    ``inner`` collects the texts of the substitutions in it, ``opaque`` what can't be judged, ``assigned`` the names
    that ``${name:=...}`` sets.
    """

    text: str
    at: int = 0
    depth: int = 0
    inner: list[str] = Factory(list)
    opaque: list[str] = Factory(list)
    assigned: list[str] = Factory(list)

    def refuse(self, why: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise NotUnderstood(f"line {line}, column {column}: {why}")

    def peek(self, length: int = 1, offset: int = 0) -> str:
        return self.text[self.at + offset : self.at + offset + length]

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEPTH:
            self.refuse("nested too deeply")
        yield
        self.depth -= 1

    def substitution(self) -> None:
        """From the parenthesis on, up to behind the one that closes it."""
        raise NotImplementedError

    def quoted(self, c: str) -> Quoted:
        """What stands at a character that means something in a word."""
        match c:
            case "\\":
                if self.peek(1, 1) == "\n":
                    self.refuse("a line that goes on in the middle of a word; put a space in front of the backslash")
                if self.at + 1 >= len(self.text):
                    self.refuse("a backslash at the very end")
                start, self.at = self.at + 1, self.at + 2
                while "\x80" <= self.peek() <= "\xbf":  # the rest of a character
                    self.at += 1
                return Quoted(self.text[start : self.at])
            case "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    self.refuse("a quote that is not closed")
                start, self.at = self.at + 1, end + 1
                return Quoted(self.text[start:end])
            case '"':
                self.at += 1
                return self.double('"', IN_DOUBLE)
            case "$":
                return self.dollar(double=False)
            case "`":
                return self.backticks(double=False)
            case _:  # <( or >(
                self.at += 1
                with self.deeper():
                    self.substitution()
                return UNKNOWN

    def double(self, closing: str, plain: re.Pattern[str], limit: int | None = None) -> Quoted:
        """What stands in double quotes, or up to ``limit`` in a here-document."""
        with self.deeper():
            return self._double(closing, plain, limit)

    def _double(self, closing: str, plain: re.Pattern[str], limit: int | None) -> Quoted:
        limit = len(self.text) if limit is None else limit
        parts, several, start = list[str | None](), False, self.at
        while self.at < limit:
            c = self.peek()
            if c == closing:
                self.at += 1
                return Quoted(None if None in parts else "".join(p for p in parts if p is not None), several)
            if found := plain.match(self.text, self.at, limit):
                parts.append(found[0])
                self.at = found.end()
            elif c == "\\":
                after = self.peek(1, 1)
                parts.append("" if after == "\n" else after if after in '$`"\\' else c + after)
                self.at += 2
            else:
                part = self.dollar(double=True) if c == "$" else self.backticks(double=True)
                parts.append(part.text)
                several |= part.several
        if closing or self.at > limit:
            self.refuse("a quote that is not closed", start)
        return UNKNOWN

    def dollar(self, *, double: bool) -> Quoted:
        """An expansion."""
        after = self.peek(1, 1)
        if after == "'" and not double:
            return self.ansi()
        if after == '"' and not double:
            self.at += 2
            self.double('"', IN_DOUBLE)
            self.opaque.append('$"..." (a text that is translated before it is expanded)')
            return UNKNOWN
        if self.peek(2, 1) == "((":
            self.at += 3
            with self.deeper():
                self.arithmetic()
        elif after == "(":
            self.at += 1
            with self.deeper():
                self.substitution()
        elif after == "{":
            with self.deeper():
                return self.braces(double=double)
        elif after == "[":
            self.refuse("$[...]; write $((...))")
        elif found := VARIABLE.match(self.text, self.at + 1):
            self.at = found.end()
            return Quoted(None, several=not double or found[0] == "@")
        else:
            self.at += 1
            return Quoted("$")
        return UNKNOWN if double else UNKNOWN_SEVERAL

    def ansi(self) -> Quoted:
        found = IN_ANSI.match(self.text, self.at + 2)
        if found is None:
            self.refuse("a quote that is not closed")
        self.at = found.end()
        return Quoted(unescaped(found[0][:-1]))

    def backticks(self, *, double: bool) -> Quoted:
        found = IN_BACKTICKS.match(self.text, self.at + 1)
        if found is None or self.text[found.end() : found.end() + 1] != "`":
            self.refuse("a backtick that is not closed")
        if double and '\\"' in found[0]:
            self.refuse("an escaped quote in backticks within quotes; write $(...)")
        self.inner.append(decoded(re.sub(r"\\([$`\\])", r"\1", found[0])))
        self.at = found.end() + 1
        return UNKNOWN if double else UNKNOWN_SEVERAL

    def arithmetic(self) -> None:
        """Up to behind the two parentheses that close it."""
        start, opened, literal = self.at, 0, True
        while True:
            if found := IN_ARITHMETIC.match(self.text, self.at):
                self.at = found.end()
            c = self.peek()
            if c == "$":
                literal = False
                self.dollar(double=True)
            elif c == "(":
                opened += 1
                self.at += 1
            elif c == ")" and opened:
                opened -= 1
                self.at += 1
            elif self.peek(2) == "))":
                break
            else:
                self.refuse(
                    "what is neither plain arithmetic nor a subshell; put a space between its parentheses", start
                )
        if not literal or not NUMBERS.match(self.text[start : self.at]):
            self.opaque.append("arithmetic with names")
        self.at += 2

    def braces(self, *, double: bool) -> Quoted:
        """A parameter expansion."""
        start = self.at
        self.at += 2
        if found := SIMPLE_BRACES.match(self.text, self.at):
            self.at = found.end()
            return Quoted(None, several=not double or "@" in found[0])
        if found := INDIRECT.match(self.text, self.at):
            self.at = found.end()
            self.opaque.append("${!...} (a variable whose name isn't known before it runs)")
            return UNKNOWN_SEVERAL
        named = NAME_IN_BRACES.match(self.text, self.at)
        if named is None:
            self.refuse("a parameter expansion of an unknown kind", start)
        self.at = named.end()
        several = named[2] == "@"
        if self.peek() == "[":
            several |= self.subscript()
        if self.peek() == "}":
            self.at += 1
            return Quoted(None, several=several or not double)
        operator = PARAMETER_OPERATOR.match(self.text, self.at)
        if named[1] or operator is None:
            self.refuse("a parameter expansion of an unknown kind", start)
        self.at = operator.end()
        self.operand(named[2], operator[0], double)
        return Quoted(None, several=True)

    def subscript(self) -> bool:
        """From ``[`` to behind ``]``; whether it means all elements."""
        start = self.at + 1
        self.at += 1
        while self.peek() not in ("]", ""):
            if found := IN_SUBSCRIPT.match(self.text, self.at):
                self.at = found.end()
            elif self.peek() == "$":
                self.dollar(double=True)
            else:
                self.refuse("a subscript with quotes or brackets")
        content = self.text[start : self.at]
        self.at += 1
        if content not in ("@", "*") and not content.isdigit():
            self.opaque.append("a subscript that is no number")
        return content == "@"

    def operand(self, name: str, operator: str, double: bool) -> None:
        """What follows the operator of a parameter expansion, to behind the brace that closes it."""
        start = self.at
        while self.peek() != "}":
            c = self.peek()
            if found := IN_BRACES.match(self.text, self.at):
                self.at = found.end()
            elif c == "$":
                self.dollar(double=double)
            elif c == "`":
                self.backticks(double=double)
            elif c == "\\" and self.peek(1, 1) not in ("", "\n"):
                self.at += 2
            elif c and c in "<>" and self.peek(1, 1) != "(":
                self.at += 1
            elif c and c in "'\"" and not double:
                self.quoted(c)
            else:
                self.refuse("a parameter expansion with quotes, braces or substitutions that shells read differently")
        content = self.text[start : self.at]
        if operator == "@" and content not in ("Q", "U", "u", "L"):
            self.opaque.append(f"${{x@{content}}}")
        if operator == ":" and not re.fullmatch(r"[0-9: -]*", content):
            self.opaque.append("${x:...} with names")
        if operator in ("=", ":="):
            self.assigned.append(name)
        self.at += 1


def decoded(latin: str) -> str:
    return latin.encode("latin-1").decode()
