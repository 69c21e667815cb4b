"""Read a Dockerfile into stages of instructions; what can't be done is refused with its line, before anything is run.

The grammar is that of Docker's Dockerfile reference: directives, comments, continued lines, heredocs, words.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from agentos.sandbox.files import openat2
from agentos.services.files.foreign_files import read_regular

MAX_BYTES = 1 << 20  # of a Dockerfile
MAX_INSTRUCTIONS = 1_000  # each stage and each RUN has the variables of those before
MAX_TOLD = 500  # characters of an error, which quotes words of any length
MAX_SHOWN = 100  # characters of an instruction
FLAGS: Mapping[str, frozenset[str]] = {
    "FROM": frozenset({"platform"}),
    "COPY": frozenset({"from", "chown", "chmod", "link"}),
    "ADD": frozenset({"chown", "chmod", "link"}),
}
PLAIN = frozenset({"RUN", "ENV", "WORKDIR", "USER", "ARG", "SHELL", "CMD", "LABEL", "EXPOSE"})
TOLD = frozenset({"ENTRYPOINT", "VOLUME", "HEALTHCHECK", "STOPSIGNAL", "MAINTAINER"})  # an image has it, no agent does
_HEREDOC = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][\w.]*)\2")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S.*)")
_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)(?:(:?[-+?])([^{}]*))?\}|([A-Za-z_]\w*)")


class BadDockerfile(Exception):
    """A Dockerfile can't be built; the text names the line, and says why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text if len(text) <= MAX_TOLD else f'{text[:MAX_TOLD]}...'}")


class Heredoc(Struct, frozen=True):
    name: str
    text: str
    expand: bool


class Budget(Struct):
    """Characters that variables may still become in all of a Dockerfile: each may hold others twice."""

    left: int = 16 << 20


class Instruction(Struct, frozen=True):
    """``rest`` is what follows the keyword and its flags, continued lines joined; ``line`` counts from 1."""

    line: int
    keyword: str
    rest: str
    flags: Mapping[str, str] = {}
    heredocs: tuple[Heredoc, ...] = ()
    budget: Budget = field(default_factory=Budget)

    @property
    def shown(self) -> str:
        """The instruction for people, in one line."""
        flags = [f"--{name}={value}" if value else f"--{name}" for name, value in self.flags.items()]
        text = " ".join([self.keyword, *flags, *self.rest.split()])
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."

    @property
    def words(self) -> Sequence[str] | None:
        """The words of the exec form, a JSON list; None for anything else. Raises :class:`BadDockerfile`."""
        if not self.rest.startswith("["):
            return None
        try:
            found = json.loads(self.rest)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            return None
        for word in found:
            if "\0" in word or (not word.isascii() and re.search("[\ud800-\udfff]", word)):
                raise self.fail(f"{word[:100]!r} has a NUL or half a character, which no program can be given")
        return found

    def fail(self, text: str) -> BadDockerfile:
        return BadDockerfile(self.line, f"{self.keyword}: {text}")


class Stage(Struct, frozen=True):
    """A FROM and what follows it; ``name`` is empty without AS."""

    begin: Instruction
    base: str
    name: str
    steps: Sequence[Instruction]


class Dockerfile(Struct, frozen=True):
    """``escape`` is the character that continues lines; ``arguments`` are the ARGs before the first FROM."""

    escape: str
    arguments: Sequence[Instruction]
    stages: Sequence[Stage]


def read_text(directory: str, file: str | None) -> str:
    """The text of ``file``, or of the Dockerfile in a directory that others may have made.

    There no FIFO is waited for, and no link leads out. Raises :class:`BadDockerfile`, ``OSError``. Blocks.
    """
    if file is not None:
        with open(file, "rb") as named:
            data = named.read(MAX_BYTES + 1)
    else:
        try:
            with (
                openat2.opened(-1, os.path.realpath(directory), os.O_PATH | os.O_DIRECTORY, openat2.NO_LINKS) as top,
                openat2.opened(top, "Dockerfile", os.O_PATH, openat2.IN_ROOT) as found,
            ):
                data = read_regular(f"/proc/self/fd/{found}", MAX_BYTES + 1)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(directory, "Dockerfile")) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadDockerfile(data[: error.start].count(b"\n") + 1, "it isn't UTF-8") from None


def parse(text: str) -> Dockerfile:
    """Raises :class:`BadDockerfile` for the first mistake, and for what isn't supported."""
    if len(text) > MAX_BYTES or "\0" in text:
        raise BadDockerfile(1, f"it has a NUL, or more than {MAX_BYTES} bytes")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape, first = _read_directives(lines)
    arguments: list[Instruction] = []
    stages: list[Stage] = []
    steps: list[Instruction] = []
    for count, one in enumerate(_read_instructions(lines, first, escape)):
        if count == MAX_INSTRUCTIONS:
            raise one.fail(f"a Dockerfile may have {MAX_INSTRUCTIONS} instructions")
        if one.keyword == "FROM":
            base, name = _read_from(one)
            if any(stage.name == name for stage in stages if name):
                raise one.fail(f"a stage before it is called {name}, too")
            steps = []
            stages.append(Stage(one, base, name, steps))
        elif not stages and one.keyword != "ARG":
            raise one.fail("expected FROM first: only ARG may stand before it")
        else:
            (steps if stages else arguments).append(one)
    if not stages:
        raise BadDockerfile(1, "it has no FROM")
    return Dockerfile(escape, arguments, stages)


def _read_directives(lines: Sequence[str]) -> tuple[str, int]:
    """The escape character, and the number of the first line that is no directive."""
    escape = "\\"
    for number, line in enumerate(lines):
        found = _DIRECTIVE.fullmatch(line.strip())
        if found is None or found[1].lower() not in ("escape", "syntax", "check"):
            return escape, number
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise BadDockerfile(number + 1, f"escape: expected \\ or `, got {found[2]!r}")
            escape = found[2]
    return escape, len(lines)


def _read_instructions(lines: Sequence[str], number: int, escape: str) -> Iterator[Instruction]:
    budget = Budget()
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        begin, parts = number, [line]
        while parts[-1].endswith(escape) and number < len(lines):
            following = lines[number].rstrip()
            number += 1
            if following.strip() and not following.lstrip().startswith("#"):
                parts[-1] = parts[-1][:-1]
                parts.append(following)
        parts[-1] = parts[-1].removesuffix(escape)
        keyword, flags, rest = _read_head("".join(parts), begin)
        heredocs = []
        if keyword in ("RUN", "COPY", "ADD") and not rest.startswith("["):
            for found in filter(None, map(_HEREDOC.fullmatch, split_words(rest, escape))):
                text, number = _read_heredoc(lines, number, found[3], found[1], begin)
                heredocs.append(Heredoc(found[3], text, not found[2]))
        yield Instruction(begin, keyword, rest, flags, tuple(heredocs), budget)


def _read_heredoc(lines: Sequence[str], number: int, name: str, tabs: str, begin: int) -> tuple[str, int]:
    found: list[str] = []
    while number < len(lines):
        line = lines[number].lstrip("\t") if tabs else lines[number]
        number += 1
        if line == name:
            return "".join(f"{each}\n" for each in found), number
        found.append(line)
    raise BadDockerfile(begin, f"the heredoc <<{name} has no end")


def _read_head(text: str, line: int) -> tuple[str, dict[str, str], str]:
    """The keyword, its flags and the rest of an instruction."""
    keyword, _, rest = re.sub(r"\s", " ", text, count=1).partition(" ")
    keyword, rest = keyword.upper(), rest.strip()
    if keyword not in PLAIN | TOLD and keyword not in FLAGS:
        raise BadDockerfile(line, f"{keyword[:50]} isn't supported: expected {', '.join(sorted({*PLAIN, *FLAGS}))}")
    flags = {}
    while keyword not in ("CMD", "ENTRYPOINT", "HEALTHCHECK") and rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        name, _, value = flag.removeprefix("--").partition("=")
        if name not in FLAGS.get(keyword, ()):
            raise BadDockerfile(line, f"{keyword}: --{name} isn't supported")
        flags[name], rest = value, rest.strip()
    if not rest:
        raise BadDockerfile(line, f"{keyword}: it says nothing")
    return keyword, flags, rest


def _read_from(one: Instruction) -> tuple[str, str]:
    words = one.rest.split()
    if len(words) == 3 and words[1].upper() == "AS" and re.fullmatch(r"[a-z][a-z0-9_.-]*", words[2].lower()):
        return words[0], words[2].lower()
    if len(words) != 1:
        raise one.fail(f"expected IMAGE or IMAGE AS NAME, got {one.rest!r}")
    return words[0], ""


def expand(one: Instruction, text: str, variables: Mapping[str, str], escape: str) -> str:
    """A word with its variables replaced and its quotes removed, as Docker does it."""
    found: list[str] = []
    quote, place = "", 0
    while place < len(text):
        letter = text[place]
        place += 1
        if letter == quote:
            quote = ""
        elif letter in "'\"" and not quote:
            quote = letter
        elif letter == escape and quote != "'" and place < len(text) and (not quote or text[place] in f'"${escape}'):
            found.append(text[place])
            place += 1
        elif letter == "$" and quote != "'" and text[place : place + 1] not in ("", " ", quote):
            value, place = _expand_variable(one, text, place, variables, escape)
            found.append(value)
        else:
            found.append(letter)
    if quote:
        raise one.fail(f"{text!r} has no closing {quote}")
    return "".join(found)


def expand_text(one: Instruction, text: str, variables: Mapping[str, str], escape: str) -> str:
    """A heredoc's text with its variables replaced; quotes stay."""
    found, place = [], 0
    while place < len(text):
        letter, following = text[place], text[place + 1 : place + 2]
        place += 1
        if letter == escape and following in ("$", escape):
            found.append(following)
            place += 1
        elif letter == "$" and (following == "{" or following.isidentifier()):
            value, place = _expand_variable(one, text, place, variables, escape)
            found.append(value)
        else:
            found.append(letter)
    return "".join(found)


def _expand_variable(
    one: Instruction, text: str, place: int, variables: Mapping[str, str], escape: str
) -> tuple[str, int]:
    found = _VARIABLE.match(text, place)
    if found is None:
        raise one.fail(f"{text!r}: expected $NAME, ${{NAME}}, ${{NAME:-WORD}}, ${{NAME:+WORD}} or ${{NAME:?WORD}}")
    name, how, word = found[1] or found[4], found[2] or "", found[3] or ""
    is_set = bool(variables.get(name)) if how.startswith(":") else name in variables
    if how.endswith("?") and not is_set:
        raise one.fail(f"{name} isn't set{f': {word}' if word else ''}")
    if how.endswith(("-", "+")) and is_set == how.endswith("+"):
        return expand(one, word, variables, escape), found.end()
    value = "" if how.endswith("+") else variables.get(name, "")
    one.budget.left -= len(value)
    if one.budget.left < 0:
        raise one.fail(f"with {name} the variables of all instructions are longer than {Budget().left} characters")
    return value, found.end()


def split_words(text: str, escape: str) -> list[str]:
    """The words of a text; quotes and escapes stay, and hold words together."""
    words, quote, place, begin = [], "", 0, None
    while place < len(text):
        letter = text[place]
        if letter.isspace() and not quote:
            if begin is not None:
                words.append(text[begin:place])
            begin = None
        else:
            begin = place if begin is None else begin
            if letter == escape and quote != "'":
                place += 1
            elif letter == quote:
                quote = ""
            elif letter in "'\"" and not quote:
                quote = letter
        place += 1
    return [*words, text[begin:]] if begin is not None else words


def read_pairs(one: Instruction, variables: Mapping[str, str], escape: str) -> dict[str, str]:
    """The pairs of an ENV or LABEL: ``NAME=VALUE ...``, or ``NAME VALUE`` with the rest of the line as the value."""
    words = split_words(one.rest, escape)
    if "=" not in words[0]:
        name, _, value = one.rest.partition(" ")
        return {name: expand(one, value.strip(), variables, escape)}
    found = {}
    for word in words:
        name, is_pair, value = word.partition("=")
        if not is_pair or not name:
            raise one.fail(f"expected NAME=VALUE, got {word!r}")
        found[expand(one, name, variables, escape)] = expand(one, value, variables, escape)
    return found
