"""What a person sees of a call that waits for approval: pure functions that make the text of each kind of call."""

import hashlib
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, islice
from typing import Final

from agentos.kernel.ports import Right
from agentos.permissions.exec_request import quote_json
from agentos.permissions.shown_lines import MARK
from agentos.shell.reader import parse_text, parse_words
from agentos.shell.reading import Reading, Word

from .page import (
    MAX_CHARS,
    MAX_LINE_CHARS,
    Page,
    cut_lines,
    decode_text,
    encode_text,
    escape,
    number_strange,
    summarize,
)

MAX_HEADER_CHARS: Final = 4096  # characters of all headers of a request, so that its body is seen
MAX_DIFF_BYTES: Final = 512 << 10  # bytes of a file that is compared
MAX_DIFF_LINES: Final = 200  # lines of either side, between the first and the last changed one, that are compared
MAX_WORDS: Final = 200  # words of a command that are looked up as files, counted for each directory
DIGEST_CHARS: Final = 16  # of the SHA-256 of a credential
CHANGEABLE: Final = "the agent can change before it runs: "  # begins a line about a file that a command names

_PIECE = r"[^\s;|&<>(){}\"'`$=:,@]+"
_PIECES: Final = re.compile(_PIECE)  # of a command: what may be a path, as in --config=x.toml
_ENTERED: Final = re.compile(rf"(?:\bcd\s+|\s-C\s*)[\"']?({_PIECE})")  # the directories that it works in
_CREDENTIALS: Final = re.compile("(?i)auth|cookie|credential|key|passw|secret|session|signature|token")  # in a header


def describe_right(right: Right) -> str:
    """The call and its object, for a call that shows nothing else."""
    page, what = Page(), "" if right.object is None else str(right.object)
    page.name(f"{right.action.upper()} ", what)
    return page.end(encode_text(what))


def describe_call(rights: Sequence[Right], names: Mapping[int, str | None], fields: Sequence[tuple[str, str]]) -> str:
    """A call that has no text of its own: its objects and agents, and the ``fields`` of the request.

    ``names`` are the lasting ones of agents, by id.
    """
    page = Page()
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
        if value not in map(quote_json, objects):
            page.quote(f"{name} = ", value, MAX_LINE_CHARS)
            page.lines += number_strange(value)
    return page.end(encode_text("\n".join([*objects, *(value for _, value in fields)])))


def describe_message(
    heading: str, name: str, texts: Sequence[tuple[str, str]], fields: Sequence[tuple[str, str]] = ()
) -> str:
    """Texts and where they go: ``SEND to`` an agent, ``THINK with`` a model.

    Each of the ``texts`` stands below its title, words of the kernel's, if that isn't empty; each of the ``fields``
    behind its name.
    """
    page = Page()
    page.name(f"{heading} ", name)
    for field_name, value in fields:
        page.quote(f"{field_name} = ", value, MAX_LINE_CHARS)
        page.lines += number_strange(value)
    for title, text in texts:
        if title:
            page.say(f"{title}:")
        page.quote_text("| ", f"{text}\n")
    return page.end(encode_text("\n".join([*(value for _, value in fields), *(text for _, text in texts)])))


def describe_text(title: str, text: str) -> str:
    """A text below its title, words of the kernel's."""
    page = Page()
    page.say(f"{title}:")
    page.quote_text("| ", f"{text}\n")
    return page.end(encode_text(text))


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
    page = Page()
    url = f"{destination}?{query}" if query else str(destination)
    page.name("HTTP ", url)
    for secret, header in secrets:
        page.say(f"the kernel adds the secret {secret} in the header {header}")
    for name, value in headers:
        most = MAX_HEADER_CHARS // len(headers)
        if _CREDENTIALS.search(name):
            digest = hashlib.sha256(encode_text(value)).hexdigest()[:DIGEST_CHARS]
            page.quote(f"a credential that the agent wrote, {len(value)} characters, sha256 {digest}…: ", name, most)
        else:
            page.quote("header that the agent wrote: ", f"{name}: {value}", most)
    if body:
        text = decode_text(body)
        page.say(f"body of {len(body)} bytes:" if text is not None else f"body: not text, {summarize(body)}")
        if text is not None:
            page.quote_text("| ", f"{text}\n")
    return page.end(encode_text("\n".join([url, *map(": ".join, headers), ""])) + (body or b""))


def describe_tool_call(name: str, arguments: bytes) -> str:
    """A call of a tool of an MCP server: its name, and the arguments as JSON."""
    page = Page()
    page.name("TOOL_CALL ", name)
    text = decode_text(arguments)
    if text is None:
        page.say(f"arguments: not text, {summarize(arguments)}")
    else:
        page.quote_text("| ", f"{text}\n")
    return page.end(encode_text(name) + b"\0" + arguments)


# -- EXEC --------------------------------------------------------------------------------------------------------------


def list_words(reading: Reading) -> Sequence[Word]:
    """The words of a command line, and the targets of its redirects."""
    return [word for one in reading.commands for word in one.words] + [one.target for one in reading.redirects]


def find_places(reading: Reading, cwd: str) -> tuple[Sequence[tuple[str, str]], int]:
    """Words of a command that may name files, each with its absolute path in ``cwd`` and where the command enters.

    Words are also what is within others: ``x.toml`` of ``--config=x.toml``, those of a here-document. At most
    :data:`MAX_WORDS`, with the number of those that are left out.
    """
    known = [word.text for word in list_words(reading) if word.text is not None]
    texts = (reading.text, *known)
    names = dict.fromkeys([*known, *(piece for text in texts for piece in _PIECES.findall(text))])
    entered = dict.fromkeys(piece for text in texts for piece in _ENTERED.findall(text))
    places = ((place, name) for place in accumulate(entered, os.path.join, initial=cwd) for name in names)
    found = [(name, os.path.normpath(os.path.join(place, name))) for place, name in islice(places, MAX_WORDS)]
    return found, len(names) * (1 + len(entered)) - len(found)


def describe_exec(command: str | Sequence[str], cwd: str, writable: Callable[[str], bool]) -> str:
    """A command, and which of its words name files that the agent can change before the command reads them.

    ``writable``: whether the agent can change what is at this absolute path. Words that only bash will know are named.
    """
    page = Page()
    reading = parse_text(command) if isinstance(command, str) else parse_words(command)
    first, *more = reading.text.split("\n")
    page.quote("$ ", first, ordered=True)
    page.quote_lines("> ", [f"{line}\n" for line in more], MAX_CHARS, ordered=True)
    page.lines += number_strange(reading.text)
    if not isinstance(command, str):
        page.say(f"without a shell: a program and {len(command) - 1} arguments")
    page.name("in ", cwd)
    places, left_out = find_places(reading, cwd)
    page.name_each(CHANGEABLE, (name for name, path in places if writable(path)))
    if left_out:
        page.say(f"{left_out} more words were not looked up as files")
    page.name_each("known only when it runs: ", (word.source for word in list_words(reading) if word.text is None))
    return page.end(encode_text(reading.text))


# -- WRITE -------------------------------------------------------------------------------------------------------------


def describe_write(path: str, old: bytes | None, new: bytes, problem: str = "") -> str:
    """What replaces a file, as a unified diff; ``old`` is its present content, ``None`` if there is no such file.

    ``problem``: why the present content isn't known.
    """
    page = Page()
    page.name("WRITE ", path)
    if problem:
        page.quote(f"{len(new)} bytes replace the present file, which can't be shown: ", problem)
    elif old is None:
        page.say(f"a new file of {len(new)} bytes")
    else:
        page.say(f"{len(new)} bytes replace {len(old)}" if new != old else "the same content as now")
    before, after = decode_text(old or b""), decode_text(new)
    if before is None or after is None or max(len(old or b""), len(new)) > MAX_DIFF_BYTES:
        if not problem:
            page.say(f"now: {summarize(old)}" if old is not None else "now: nothing")
        page.say(f"new: {summarize(new)}, " + ("too large to compare" if after is not None else "not text"))
    else:
        _quote_diff(page, cut_lines(before, MAX_DIFF_BYTES)[0], cut_lines(after, MAX_DIFF_BYTES)[0])
    return page.end(new)


def describe_append(path: str, size: int, data: bytes, problem: str = "") -> str:
    """What is added at the end of a file of ``size`` bytes. ``problem``: why the present file isn't known."""
    page = Page()
    page.name("WRITE ", path)
    page.say(f"{len(data)} bytes are added at the end of {size if not problem else 'the present file'}")
    if problem:
        page.quote("the present file can't be shown: ", problem)
    text = decode_text(data)
    if text is None:
        page.say(f"new: {summarize(data)}, not text")
    else:
        page.quote_text("+", text)
    return page.end(data)


def _quote_diff(page: Page, old: list[str], new: list[str]) -> None:
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
