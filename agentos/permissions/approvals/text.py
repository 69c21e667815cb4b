"""What a person sees of a call that waits for approval: pure functions that make its text.

Agents choose most of the content, so every line begins with a word or sign of the kernel's, and the rest is quoted (see
:mod:`agentos.permissions.shown_lines`) and escaped: no control character, line break, bidi control or invisible
character survives, and nothing can look like another line. Runs of white space and of empty lines are collapsed and
counted. A text is bounded. What is cut is counted, and the SHA-256 of the whole is shown.
"""

import hashlib
import json
import os.path
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final

from attrs import define, field

from agentos.kernel.ports import Right
from agentos.permissions.shown_lines import MARK
from agentos.shell.reader import parse_text, parse_words

MAX_CHARS: Final = 16 << 10  # characters of a text, escaped
MAX_LINE_CHARS: Final = 2000  # characters of a line of a file, a message or a body
MAX_HEADER_CHARS: Final = 4096  # characters of all headers of a request, so that its body is seen
MAX_NAME_CHARS: Final = 4096  # characters, escaped, that a name may take even where a content took all room
MAX_DIFF_BYTES: Final = 512 << 10  # bytes of a file that is compared
MAX_DIFF_LINES: Final = 200  # lines of either side, between the first and the last changed one, that are compared
MAX_WORDS: Final = 200  # words of a command that are looked up as files
MAX_MARKS: Final = 2  # combining marks in a row
MAX_SPACES: Final = 16  # in a row
MAX_INDENT: Final = 40  # spaces at the beginning of a line of a content
MAX_EMPTY_LINES: Final = 2  # in a row
MAX_LISTED: Final = 6  # characters outside ASCII that are listed by number
DIGEST_CHARS: Final = 16  # of the SHA-256 of a credential
MAX_NAMED: Final = 20  # words of a command in lines of their own
CHANGEABLE: Final = "the agent can change before it runs: "  # begins a line about a file that a command names

_QUOTES: Final = "\u2039\u203a"  # clients without other means put them around what is quoted
# Printable by category, but invisible.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159")
_SELECTORS: Final = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # variation selectors
_RUNS: Final = re.compile(r"(\s)\1*")  # of one white space character
_PIECES: Final = re.compile(r"[^\s;|&<>(){}\"'`$=:,@]+")  # of a command: what may be a path, as in --config=x.toml
_CREDENTIALS: Final = re.compile("(?i)auth|cookie|credential|key|passw|secret|session|signature|token")  # in a header


def escape(text: str, *, ordered: bool = True) -> str:
    r"""The text in one line of visible characters.

    All others become ``\u{1b}``, long runs of one white space character ``\u{20, 1500 times}``, and so does a backslash
    that would begin such an escape: no two texts look the same. ``ordered``: letters that run from right to left are
    escaped, too, for a terminal may show them, and the digits and signs beside them, in another order; and spaces at
    the beginning are no indentation.
    """
    if text.isascii() and text.isprintable() and "\\u{" not in text and not text.endswith(" ") and "  " not in text:
        return text
    pieces, at = list[str](), 0
    for run in _RUNS.finditer(text):
        most = MAX_INDENT if run.start() == 0 and not ordered else MAX_SPACES
        if run.end() - run.start() > most:
            pieces += _escape(text[at : run.start()], ordered), f"\\u{{{ord(run[1]):x}, {len(run[0])} times}}"
            at = run.end()
    return "".join([*pieces, _escape(text[at:], ordered)])


def _escape(text: str, ordered: bool) -> str:
    """A text in which no run of white space is long."""
    shown, marks = [], MAX_MARKS  # a mark at the beginning would change the character before the text
    for place, char in enumerate(text):
        marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
        if char == "\\":
            plain = not text.startswith("u{", place + 1)
        elif char == " ":
            plain = place + 1 < len(text)  # at the end of a line it isn't seen
        else:
            plain = _is_visible(char) and marks <= MAX_MARKS and not (ordered and _runs_left(char))
        shown.append(char if plain else f"\\u{{{ord(char):x}}}")
    return "".join(shown)


def _is_visible(char: str) -> bool:
    """Whether it is a character of its own, or a mark that neither hides nor strikes out the one before."""
    return (
        char.isprintable()  # no control, format, private or unknown character
        and char not in _BLANK
        and char not in _QUOTES
        and not _SELECTORS.match(char)
        and unicodedata.category(char) != "Me"
        and unicodedata.combining(char) != 1
    )


def _runs_left(char: str) -> bool:
    return unicodedata.bidirectional(char) in ("R", "AL", "AN")


@define
class _Page:
    """Lines of at most about :data:`MAX_CHARS` characters; what has no room is counted."""

    lines: list[str] = field(factory=list)
    _room: int = MAX_CHARS
    _cut_lines: int = 0
    _cut_chars: int = 0

    def say(self, line: str) -> None:
        """Add a line of the kernel's, whatever room is left."""
        self.lines.append(line)

    def quote_lines(
        self, sign: str, lines: Sequence[str], most: int = MAX_LINE_CHARS, *, ordered: bool = False
    ) -> None:
        """Add lines of a content, as far as there is room; one without a line break is its last."""
        number = 0
        while number < len(lines):
            if self._room <= 0:
                self._cut_lines += len(lines) - number
                self._cut_chars += sum(map(len, lines[number:]))
                return
            line = lines[number]
            self.quote(sign, line.removesuffix("\n"), most, ordered=ordered)
            if not line.endswith("\n"):
                self.say("\\ no line break at the end")
            number += 1
            if line == "\n":
                number += self._count_empty(lines, number)

    def _count_empty(self, lines: Sequence[str], start: int) -> int:
        """Collapse the empty lines from there on, if they are many; how many were collapsed."""
        end = start
        while end < len(lines) and lines[end] == "\n":
            end += 1
        if end - start < MAX_EMPTY_LINES:
            return 0
        self.say(f"… {end - start} more empty lines like this one")
        return end - start

    def quote_text(self, sign: str, text: str) -> None:
        """Add the lines of a text like :meth:`quote_lines`; what has no room is counted without being split."""
        kept, end = _split_lines(text, MAX_CHARS)
        self.quote_lines(sign, kept)
        if end < len(text):
            self._cut_lines += text.count("\n", end) + (not text.endswith("\n"))
            self._cut_chars += len(text) - end

    def quote(self, sign: str, text: str, most: int = MAX_CHARS, *, ordered: bool = False) -> None:
        """Add a line of foreign text behind words of the kernel's; it is cut to the room that is left."""
        kept = text[: max(0, min(most, self._room))]
        while len(shown := escape(kept, ordered=ordered)) > self._room and len(kept) > 1:
            kept = kept[: len(kept) // 2]
        self.lines.append(f"{sign}{MARK}{shown}")
        self._room -= len(sign + shown)
        if cut := len(text) - len(kept):
            self._cut_chars += cut
            self.lines.append(f"… {cut} more characters of this line are not shown")

    def name(self, sign: str, name: str) -> None:
        """Add a line whose exact characters matter, and the numbers of those that may look like others."""
        self._room = max(self._room, MAX_NAME_CHARS)
        self.quote(sign, name, ordered=True)
        self.lines += number_strange(name)

    def name_each(self, begin: str, names: Iterable[str]) -> None:
        """Add a line for each of these names; those without room are counted."""
        listed = list(dict.fromkeys(names))
        for name in listed[:MAX_NAMED]:
            self._room = max(self._room, MAX_LINE_CHARS)
            self.quote(begin, name, MAX_LINE_CHARS, ordered=True)
        if len(listed) > MAX_NAMED:
            self.say(f"… {len(listed) - MAX_NAMED} more such names are not shown")

    def end(self, whole: bytes) -> str:
        """All lines; ``whole`` is what a cut text's digest is made of."""
        if self._cut_lines:
            self.say(f"… {self._cut_lines} more lines are not shown, {self._cut_chars} characters in all")
        if self._cut_chars:
            self.say(f"all of it: {_summarize(whole)}")
        return "\n".join(self.lines)


def number_strange(*names: str) -> Sequence[str]:
    """The line with the numbers of characters that may look like others; none if all are ASCII."""
    strange = sorted({char for name in names for char in name if not char.isascii()})
    more = f" and {len(strange) - MAX_LISTED} more" if len(strange) > MAX_LISTED else ""
    numbers = [f"U+{ord(char):04X}" for char in strange[:MAX_LISTED]]
    return [f"not ASCII: {', '.join(numbers)}{more}"] if numbers else []


def _summarize(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _decode(data: bytes) -> str | None:
    """The text of a file or a body; ``None`` if it is none."""
    try:
        return data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        return None


def describe_right(right: Right) -> str:
    """The call and its object, for a call that shows nothing else."""
    page, what = _Page(), "" if right.object is None else str(right.object)
    page.name(f"{right.action.upper()} ", what)
    return page.end(_encode(what))


def describe_call(rights: Sequence[Right], names: Mapping[int, str | None], fields: Sequence[tuple[str, str]]) -> str:
    """A call that has no text of its own: its objects and agents, and the ``fields`` of the request.

    ``names`` are the lasting ones of agents, by id.
    """
    page = _Page()
    objects = [str(right.object) for right in rights if right.object is not None]
    for right in rights:
        action = right.action.upper()
        if right.object is not None:
            page.name(f"{action} ", str(right.object))
        elif right.agent is None:
            page.say(action)
        if right.agent is not None:
            page.name(f"{action} agent ", names.get(right.agent) or f"with the id {right.agent}")
    for name, value in fields:
        if value not in map(_quote, objects):
            page.quote(f"{name} = ", value, MAX_LINE_CHARS)
            page.lines += number_strange(value)
    return page.end(_encode("\n".join([*objects, *(value for _, value in fields)])))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def describe_message(
    heading: str, name: str, texts: Sequence[tuple[str, str]], fields: Sequence[tuple[str, str]] = ()
) -> str:
    """Texts and where they go: ``SEND to`` an agent, ``THINK with`` a model.

    Each of the ``texts`` stands below its title, words of the kernel's, if that isn't empty; each of the ``fields``
    behind its name.
    """
    page = _Page()
    page.name(f"{heading} ", name)
    for field_name, value in fields:
        page.quote(f"{field_name} = ", value, MAX_LINE_CHARS)
        page.lines += number_strange(value)
    for title, text in texts:
        if title:
            page.say(f"{title}:")
        page.quote_text("| ", f"{text}\n")
    return page.end(_encode("\n".join([*(value for _, value in fields), *(text for _, text in texts)])))


def describe_text(title: str, text: str) -> str:
    """A text below its title, words of the kernel's."""
    page = _Page()
    page.say(f"{title}:")
    page.quote_text("| ", f"{text}\n")
    return page.end(_encode(text))


def describe_field(words: str, text: str) -> str:
    """One line: words of the kernel's, and a text."""
    return f"{words}{MARK}{escape(text)}"


def describe_http(
    destination: object,
    headers: Sequence[tuple[str, str]],
    body: bytes | None,
    query: str = "",
    secrets: Sequence[tuple[str, str]] = (),
) -> str:
    """An HTTP request: method and URL, the headers that the agent has written, and the body.

    Of a header that holds a credential by its name, only length and digest are shown. ``secrets`` are those that the
    kernel will add, each by its name and its header.
    """
    page = _Page()
    url = f"{destination}?{query}" if query else str(destination)
    page.name("HTTP ", url)
    for secret, header in secrets:
        page.say(f"the kernel adds the secret {secret} in the header {header}")
    for name, value in headers:
        most = MAX_HEADER_CHARS // len(headers)
        if _CREDENTIALS.search(name):
            digest = hashlib.sha256(_encode(value)).hexdigest()[:DIGEST_CHARS]
            page.quote(f"a credential that the agent wrote, {len(value)} characters, sha256 {digest}…: ", name, most)
        else:
            page.quote("header that the agent wrote: ", f"{name}: {value}", most)
    if body:
        text = _decode(body)
        page.say(f"body of {len(body)} bytes:" if text is not None else f"body: not text, {_summarize(body)}")
        if text is not None:
            page.quote_text("| ", f"{text}\n")
    return page.end(_encode("\n".join([url, *map(": ".join, headers), ""])) + (body or b""))


def describe_tool_call(name: str, arguments: bytes) -> str:
    """A call of a tool of an MCP server: its name, and the arguments as JSON."""
    page = _Page()
    page.name("TOOL_CALL ", name)
    text = _decode(arguments)
    if text is None:
        page.say(f"arguments: not text, {_summarize(arguments)}")
    else:
        page.quote_text("| ", f"{text}\n")
    return page.end(_encode(name) + b"\0" + arguments)


# -- EXEC --------------------------------------------------------------------------------------------------------------


def describe_exec(command: str | Sequence[str], cwd: str, writable: Callable[[str], bool]) -> str:
    """A command, and which of its words name files that the agent can change before the command reads them.

    ``writable``: whether the agent can change what is at this absolute path. Words that only bash will know are named.
    """
    page = _Page()
    reading = parse_text(command) if isinstance(command, str) else parse_words(command)
    first, *more = reading.text.split("\n")
    page.quote("$ ", first, ordered=True)
    page.quote_lines("> ", [f"{line}\n" for line in more], MAX_CHARS, ordered=True)
    page.lines += number_strange(reading.text)
    if not isinstance(command, str):
        page.say(f"without a shell: a program and {len(command) - 1} arguments")
    page.name("in ", cwd)
    words = [word for one in reading.commands for word in one.words] + [one.target for one in reading.redirects]
    known = [word.text for word in words if word.text is not None]
    names = dict.fromkeys([*known, *(piece for text in (reading.text, *known) for piece in _PIECES.findall(text))])
    looked_up = list(names)[:MAX_WORDS]
    changeable = (name for name in looked_up if writable(os.path.normpath(os.path.join(cwd, name))))
    page.name_each(CHANGEABLE, changeable)
    if len(names) > len(looked_up):
        page.say(f"{len(names) - len(looked_up)} more words were not looked up as files")
    page.name_each("known only when it runs: ", (word.source for word in words if word.text is None))
    return page.end(_encode(reading.text))


# -- WRITE -------------------------------------------------------------------------------------------------------------


def describe_write(path: str, old: bytes | None, new: bytes, problem: str = "") -> str:
    """What replaces a file, as a unified diff; ``old`` is its present content, ``None`` if there is no such file.

    ``problem``: why the present content isn't known.
    """
    page = _Page()
    page.name("WRITE ", path)
    if problem:
        page.quote(f"{len(new)} bytes replace the present file, which can't be shown: ", problem)
    elif old is None:
        page.say(f"a new file of {len(new)} bytes")
    else:
        page.say(f"{len(new)} bytes replace {len(old)}" if new != old else "the same content as now")
    before, after = _decode(old or b""), _decode(new)
    if before is None or after is None or max(len(old or b""), len(new)) > MAX_DIFF_BYTES:
        if not problem:
            page.say(f"now: {_summarize(old)}" if old is not None else "now: nothing")
        page.say(f"new: {_summarize(new)}, " + ("too large to compare" if after is not None else "not text"))
    else:
        _quote_diff(page, _split_lines(before)[0], _split_lines(after)[0])
    return page.end(new)


def describe_append(path: str, size: int, data: bytes, problem: str = "") -> str:
    """What is added at the end of a file of ``size`` bytes. ``problem``: why the present file isn't known."""
    page = _Page()
    page.name("WRITE ", path)
    page.say(f"{len(data)} bytes are added at the end of {size if not problem else 'the present file'}")
    if problem:
        page.quote("the present file can't be shown: ", problem)
    text = _decode(data)
    if text is None:
        page.say(f"new: {_summarize(data)}, not text")
    else:
        page.quote_text("+", text)
    return page.end(data)


def _split_lines(text: str, most: int = MAX_DIFF_BYTES) -> tuple[list[str], int]:
    """The first lines, at most ``most``, each with its line break, which the last one may lack; and where they end."""
    parts = text.split("\n", most)
    rest = parts.pop()
    lines = [f"{part}\n" for part in parts]
    if rest and len(lines) < most:
        return [*lines, rest], len(text)
    return lines, len(text) - len(rest)


def _quote_diff(page: _Page, old: list[str], new: list[str]) -> None:
    for group in compare_lines(old, new):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        page.say(f"@@ -{old_start + 1},{old_end - old_start} +{new_start + 1},{new_end - new_start} @@")
        for tag, i, j, k, m in group:
            page.quote_lines(" " if tag == "equal" else "-", old[i:j])
            page.quote_lines("+", new[k:m] if tag != "equal" else ())


Change = tuple[str, int, int, int, int]  # as difflib has it: tag, lines i:j of the old file, k:m of the new one


def compare_lines(old: list[str], new: list[str]) -> Iterator[list[Change]]:
    """Groups of changes with three lines around each; a large change is one group, without a search within it."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    end = 0
    while end < min(len(old), len(new)) - same and old[-1 - end] == new[-1 - end]:
        end += 1
    if same == len(old) == len(new):
        return
    start, tail = max(0, same - 3), max(0, end - 3)
    if max(len(old), len(new)) - same - end <= MAX_DIFF_LINES:
        matcher = SequenceMatcher(None, old[start : len(old) - tail], new[start : len(new) - tail], autojunk=False)
        groups = list(matcher.get_grouped_opcodes())
    else:
        i, j, k = same - start, len(old) - end - start, len(new) - end - start
        groups = [[("equal", 0, i, 0, i), ("replace", i, j, i, k), ("equal", j, j + end - tail, k, k + end - tail)]]
    for group in groups:
        yield [(tag, i + start, j + start, k + start, m + start) for tag, i, j, k, m in group]
