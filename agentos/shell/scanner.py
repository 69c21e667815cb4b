"""Goes over a text once, as bash's lexer does, and hands words and operators to frames.

All that is outside the subset is noted as a construct. The text is then still read on, as well as it can be, for what
denials look at. Nothing here raises, recurses, or looks at a character more than a few times.
"""

import re
from typing import Literal

from attrs import Factory, define

from . import lexemes
from .frames import Findings, Frame, Mode


@define(eq=False)
class Text:
    """A frame without commands: ``"..."``, ``${...}``, arithmetic, or a here-document in which bash expands.

    ``resume`` is the index at which the text goes on after ``limit``.
    """

    kind: Literal['"', "}", ""]
    limit: int
    resume: int
    start: int
    in_backquotes: bool


@define(eq=False)
class Scanner:
    text: str
    findings: Findings
    depth: int = 0
    at: int = 0
    _stack: list[Frame | Text] = Factory(list)
    _documents: list[tuple[str, bool, bool]] = Factory(list)  # here-documents: delimiter, whether quoted, with tabs
    _cut: int = 0  # up to here the text is in ``findings.code``

    def run(self) -> None:
        """Finds all that is in the text."""
        if odd := lexemes.CONTROL.search(self.text):
            self.findings.note_construct(f"the control character {odd[0]!r}")
        self._stack = [Frame(self.findings, "", len(self.text), self.depth)]
        while self._stack and self.findings.complete:
            top = self._stack[-1]
            if self.at >= top.limit:
                self._pop()
            elif isinstance(top, Frame):
                self._step(top)
            else:
                self._step_in_text(top)
        self.findings.code.append(self.text[self._cut :])

    def _pop(self) -> None:
        """Ends the innermost frame."""
        top = self._stack.pop()
        if isinstance(top, Frame):
            top.take_word(self.at, self.text)
            top.end_command("")
            if self.text.startswith(top.closer, self.at) and top.closer in lexemes.TICKS:
                self.at += len(top.closer)
        else:
            if top.kind and self.at >= top.limit:
                self.findings.note_construct("a quote that is not closed")
            self.at = max(self.at, top.resume)
            self._read_documents()
        if self._documents and not self._stack:
            self.findings.note_construct("a here-document without its end")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The pattern here, within the innermost frame."""
        return pattern.match(self.text, self.at, self._stack[-1].limit)

    def _push(self, closer: str, mode: Mode = "commands", limit: int | None = None) -> None:
        """Begins a frame of commands within the present one."""
        top = self._stack[-1]
        self.findings.count_piece()
        if limit is None:
            limit = top.limit
        self._stack.append(
            Frame(self.findings, closer, limit, self.depth, mode, closer in lexemes.TICKS or top.in_backquotes)
        )

    def _push_text(self, kind: Literal['"', "}", ""], limit: int, resume: int = -1) -> None:
        self._stack.append(Text(kind, limit, resume, self.at, self._stack[-1].in_backquotes))

    def _cut_out(self, start: int, end: int) -> None:
        self.findings.code.append(self.text[self._cut : start] + "''")
        self._cut = end

    # -- Where commands are ------------------------------------------------------------------------------------------

    def _step(self, frame: Frame) -> None:
        """One piece of a text of commands."""
        if plain := self._match(lexemes.PLAIN):
            self._add(frame, plain[0], plain.end())
            return
        char = self.text[self.at]
        if char in " \t":
            frame.take_word(self.at, self.text)
            self.at += 1
        elif char == "#":
            self._comment(frame)
        elif char in "'\"\\":
            self._quote(frame, char)
        elif char in "$`":
            self._expansion(frame, char)
        elif char in "*?[~{":
            self._pattern(frame, char)
        elif char in "()":
            self._parenthesis(frame, char)
        elif char in "<>" or self._match(lexemes.REDIRECT):
            self._redirect(frame)
        elif separator := self._match(lexemes.SEPARATOR):
            self._separate(frame, separator[0])
        else:
            self.findings.note_construct(f"the blank {char!r}")
            self._add(frame, char, self.at + 1)

    def _begin(self, frame: Frame) -> None:
        if frame.start < 0:
            frame.start = self.at

    def _add(self, frame: Frame, value: str, end: int) -> None:
        """Literal characters of a word."""
        self._begin(frame)
        frame.value.append(value)
        self.at = end

    def _comment(self, frame: Frame) -> None:
        if frame.start >= 0:
            self._add(frame, "#", self.at + 1)
            return
        end = self.text.find("\n", self.at, frame.limit)
        end = frame.limit if end < 0 else end
        self._cut_out(self.at, end)
        self.at = end

    def _quote(self, frame: Frame, char: str) -> None:
        if char == "\\":
            self._escape(frame)
            return
        self._begin(frame)
        if char == '"':
            self._push_text('"', frame.limit)
            self.at += 1
            return
        end = self.text.find("'", self.at + 1, frame.limit)
        if end < 0:
            self.findings.note_construct("a quote that is not closed")
            end = frame.limit
        self._cut_out(self.at, end + 1)
        self._add(frame, self.text[self.at + 1 : end], end + 1)

    def _escape(self, frame: Frame) -> None:
        following = self.text[self.at + 1 : min(self.at + 2, frame.limit)]
        if following == "\n":
            if frame.start >= 0 or self.text[self.at - 1 : self.at] not in (" ", "\t"):
                self.findings.note_construct("an escaped newline without a blank before it")
            self.at += 2
        elif following == "`" and frame.in_backquotes:
            self._begin(frame)
            frame.known = False
            self._backquote()
        elif following:
            self._add(frame, following, self.at + 2)
        else:
            self.findings.note_construct("a backslash at the end")
            self._add(frame, "\\", self.at + 1)

    def _pattern(self, frame: Frame, char: str) -> None:
        if char == "{":
            self.findings.note_construct("an unquoted `{`")
            frame.braces = True
        elif char == "[":
            frame.bracket = self.at if frame.bracket < 0 else frame.bracket
        elif char != "~":
            frame.known, frame.several = False, True
        elif frame.start < 0 or self.text[self.at - 1] in "=:'\"\\":
            frame.known = False
        self._add(frame, char, self.at + 1)

    def _parenthesis(self, frame: Frame, char: str) -> None:
        begun = frame.start >= 0
        if frame.mode == "test":
            frame.take_word(self.at, self.text)
            self.at += 1
            return
        self.findings.note_construct(f"an unquoted `{char}`")
        if char == ")":
            frame.take_word(self.at, self.text)
            self.at += 1
            if frame.mode == "pattern":
                frame.close_pattern()
            elif frame.closer == ")":
                self._stack.pop()
                frame.end_command("")
            return
        if frame.mode == "pattern":
            frame.take_word(self.at, self.text)
            self.at += 1
        elif (begun or not frame.is_empty) and (empty := self._match(lexemes.EMPTY_LIST)):
            frame.take_word(self.at, self.text)
            frame.begin_commands()
            self.at = empty.end()
        elif not begun and (arithmetic := self._match(lexemes.ARITHMETIC)):
            self._push_text("", arithmetic.end(), arithmetic.end())
            self.at += 2
        else:
            frame.known &= not begun
            self._push(")", "data" if begun else "commands")  # an array or a pattern, or a subshell
            self.at += 1

    def _redirect(self, frame: Frame) -> None:
        match = self._match(lexemes.REDIRECT)
        operator = match[0] if match else self.text[self.at]
        if frame.mode == "test":
            frame.take_word(self.at, self.text)
            self.at += 1
            return
        if operator in ("<(", ">("):
            self.findings.note_construct(f"process substitution `{operator}`")
            self._begin(frame)
            frame.known = False
            self.at += 2
            self._push(")")
            return
        source = self.text[frame.start : self.at] if frame.start >= 0 else ""
        if operator[0] != "&" and re.fullmatch("[0-9]+", source):
            if len(source) > 2 or frame.expects_file:
                self.findings.note_construct("a number in front of a redirection")
            frame.start, frame.value = -1, []
        else:
            frame.take_word(self.at, self.text)
        if descriptor := self._match(lexemes.TO_DESCRIPTOR):
            frame.redirect("")
            self.at = descriptor.end()
            return
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            self._document(frame, operator)
            return
        if operator in ("<<<", "<&", "<>", ">&"):
            self.findings.note_construct(f"the operator `{operator}`")
        frame.redirect(operator)

    def _separate(self, frame: Frame, operator: str) -> None:
        frame.take_word(self.at, self.text)
        self.at += len(operator)
        if frame.mode == "test" or frame.mode == "pattern":
            return
        if operator in ("&", "|&", ";;", ";&", ";;&"):
            self.findings.note_construct(f"the operator `{operator}`")
        frame.end_command(operator)
        if operator == "\n":
            self._read_documents()

    # -- Here-documents ----------------------------------------------------------------------------------------------

    def _document(self, frame: Frame, operator: str) -> None:
        found = self._match(lexemes.DELIMITER)
        if found is None:
            self.findings.note_construct("a here-document with an unusual delimiter")
            frame.redirect("<<<")
            return
        quoted = found[4] is None
        if not quoted:
            self.findings.note_construct("a here-document whose delimiter is not quoted")
        frame.redirect("")
        self._documents.append((found[1] or found[2] or found[3] or found[4], quoted, operator == "<<-"))
        self.at = found.end()

    def _read_documents(self) -> None:
        """Passes over the bodies of here-documents, up to the next in which bash expands something."""
        while self._documents and self._stack and self.text[self.at - 1 : self.at] == "\n":
            delimiter, quoted, tabs = self._documents.pop(0)
            limit = self._stack[-1].limit
            before = r"\t*" if tabs else ""
            line = rf"^{before}{re.escape(delimiter)}(\n|\Z)"
            end = re.compile(line, re.MULTILINE).search(self.text, self.at, limit)
            if end is None:
                self.findings.note_construct("a here-document without its end")
            body, after = (end.start(), end.end()) if end else (limit, limit)
            if not quoted:
                self._push_text("", body, after)
                return
            self._cut_out(self.at, body)
            self.at = after

    # -- Expansions --------------------------------------------------------------------------------------------------

    def _expansion(self, frame: Frame, char: str) -> None:
        """``$`` and backquotes outside of double quotes."""
        if char == "`":
            self._begin(frame)
            frame.known, frame.several = False, True
            self._backquote()
            return
        if self.text[self.at : self.at + 2] in ("$'", '$"'):
            self.findings.note_construct(f"the quote `{self.text[self.at : self.at + 2]}`")
            quoted = lexemes.ANSI_C.match(self.text, self.at + 1, frame.limit)
            value = lexemes.unescape(quoted[1]) if quoted else ""
            frame.known &= quoted is not None and value is not None
            self._add(frame, value or "", quoted.end() if quoted else self.at + 1)
            return
        self._dollar(frame, in_quotes=False)

    def _dollar(self, frame: Frame | None, *, in_quotes: bool) -> None:
        """``$`` and what follows it; ``frame`` has the word that it is in, if it is in one."""
        limit = self._stack[-1].limit
        if frame is not None:
            self._begin(frame)
            if self._match(lexemes.DOLLAR) and (in_quotes or self.text[self.at + 1 : self.at + 2] != '"'):
                frame.value.append("$")
                self.at += 1
                return
            frame.known = False
            frame.several |= not in_quotes or self.text.startswith("$@", self.at)
        if name := self._match(lexemes.NAME):
            self.at = name.end()
        elif arithmetic := self._match(lexemes.ARITHMETIC):
            self.findings.note_construct("arithmetic `$((`")
            self._push_text("", arithmetic.end(), arithmetic.end())
            self.at += 3
        elif self.text.startswith("$(", self.at):
            self.findings.note_construct("command substitution `$(`")
            self.at += 2
            self._push(")")
        elif self.text.startswith("${", self.at):
            self.findings.note_construct("an expansion `${` of more than a name")
            if frame is not None:
                frame.several |= "@" in self.text[self.at : self.at + 100]
            self._push_text("}", limit)
            self.at += 2
        else:
            self.findings.note_construct(f"the expansion `{self.text[self.at : self.at + 2]}`")
            special = self._match(lexemes.SPECIAL)
            self.at = special.end() if special else self.at + 1

    def _backquote(self) -> None:
        """A backquote: its frame ends at the next one that has no backslash."""
        self.findings.note_construct("a backquote")
        escaped = self.text[self.at] == "\\"
        self.at += 2 if escaped else 1
        limit = self._stack[-1].limit
        if escaped:
            end = self.text.find("\\`", self.at, limit)
            end = limit if end < 0 else end
        else:
            match = self._match(lexemes.BACKQUOTE)
            end = match.end() if match else limit
        self._push("\\`" if escaped else "`", limit=end)

    # -- Texts without commands ----------------------------------------------------------------------------------------

    def _step_in_text(self, top: Text) -> None:
        """One piece of a text that has expansions, and else no meaning."""
        frame = self._word_of(top)
        if run := self._match({'"': lexemes.QUOTED, "}": lexemes.BRACED, "": lexemes.BODY}[top.kind]):
            if frame is not None:
                frame.value.append(run[0])
            self.at = run.end()
            return
        char = self.text[self.at]
        if char == "\\":
            self._escape_in_text(top, frame)
        elif char == "$":
            self._dollar(frame, in_quotes=True)
        elif char == "`":
            if frame is not None:
                frame.known = False
            self._backquote()
        elif char == top.kind:
            self._stack.pop()
            self.at += 1
            if top.kind == '"' and self._cut <= top.start and frame is not None and frame.known:
                self._cut_out(top.start, self.at)
        elif char == '"':
            self._push_text('"', top.limit)
            self.at += 1
        else:  # a quote in ``${...}``: one without double quotes around it quotes
            end = self.text.find("'", self.at + 1, top.limit) if isinstance(self._stack[-2], Frame) else self.at
            self.at = (top.limit if end < 0 else end) + 1

    def _word_of(self, top: Text) -> Frame | None:
        """The frame with the word that a quoted text is a part of."""
        below = self._stack[-2]
        return below if top.kind == '"' and isinstance(below, Frame) else None

    def _escape_in_text(self, top: Text, frame: Frame | None) -> None:
        following = self.text[self.at + 1 : min(self.at + 2, top.limit)]
        if following == "`" and top.in_backquotes:
            if frame is not None:
                frame.known = False
            self._backquote()
            return
        if frame is not None and following != "\n":
            frame.value.append(following if following in ("$", "`", '"', "\\") else "\\" + following)
        self.at += 2
