"""Patterns of paths, written as in a .gitignore."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache

from attrs import frozen

from . import globs
from .base import BadPattern, Names
from .globs import NAME, Below, Item, Many, One

LONGEST = 4096  # characters of a path; more the system takes in no call
LONGEST_PATTERN = 1024

ANY_NAME = (One(NAME), Many(NAME))
BELOW = Below()

Segment = tuple[One | Many, ...] | Below


@frozen
class PathPattern:
    """``what`` is an absolute path without ``.``, ``..`` and doubled slashes, spelled as ``os.fsdecode`` spells it.

    A grant holds for what the pattern names: with a slash at its end for all that is below, but without one for that
    file alone. A denial holds for what it names and for all below. The case matters. What is too long to be a path is
    never granted, and always denied.
    """

    text: str
    named: tuple[Segment, ...] | None  # what it names, None where that is nothing
    directory: bool  # whether that must be a directory

    def matches(self, what: str, *, deny: bool) -> bool:
        if len(what) > LONGEST:
            return deny
        return (self._denied if deny else self._granted)(what) is not None

    def covers(self, other: "PathPattern", *, deny: bool) -> bool:
        if self.named is None or other.named is None:  # the other is of use elsewhere, where there is such a directory
            return False
        if not self.matches(other._example, deny=deny):  # mostly the end of it, and quick
            return False
        return globs.within(_items(other.as_grant), _items(self.as_denial if deny else self.as_grant))

    @property
    def as_grant(self) -> tuple[Segment, ...]:
        return (*(self.named or ()), ANY_NAME, BELOW) if self.directory else self.named or ()

    @property
    def as_denial(self) -> tuple[Segment, ...]:
        return (*(self.named or ()), BELOW)

    @cached_property
    def _granted(self) -> globs.Matcher:
        return _matcher(self.as_grant) if self.named is not None else _nothing

    @cached_property
    def _denied(self) -> globs.Matcher:
        return _matcher(self.as_denial) if self.named is not None else _nothing

    @cached_property
    def _example(self) -> str:
        return globs.shortest(_items(self.as_grant))


@lru_cache(1024)
def read(text: str, names: Names) -> PathPattern:
    """Raises ``BadPattern`` for what is no pattern, or could never match an absolute path."""
    _check(text)
    start, rest = _start(text, names)
    inner = rest.removeprefix("/").removesuffix("/")
    below = _segments(text, inner.split("/") if inner else [])
    return PathPattern(text, None if start is None else (*start, *below), rest.endswith("/"))


def either(patterns: Iterable[PathPattern], *, deny: bool) -> Callable[[str], bool]:
    """Whether any of them matches. To ask them all at once takes a tenth of the time of asking one after the other."""
    regexes = [_regex(each.as_denial if deny else each.as_grant) for each in patterns if each.named is not None]
    search = _any(tuple(regex for floats, regex in regexes if floats))
    match = _any(tuple(regex for floats, regex in regexes if not floats))

    def matches(what: str) -> bool:
        if len(what) > LONGEST:
            return deny
        return match.match(what) is not None or search.search(what) is not None

    return matches


@lru_cache(64)
def _any(regexes: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(regexes) or r"(?!)")


def _check(text: str) -> None:
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '/**' for every path")
    if text == "/":
        raise BadPattern("'/' names no file: write '/**' for every path")
    if len(text) > LONGEST_PATTERN:
        raise BadPattern(f"{text[:40]!r}… is longer than {LONGEST_PATTERN} characters: write '*' for a part of it")
    if text != text.strip():
        raise BadPattern(f"{text!r} begins or ends with a space: take it away, or write '[ ]' where it is meant")
    if "\0" in text:
        raise BadPattern(f"{text!r} has a NUL in it, and no path has")
    if "//" in text:
        raise BadPattern(f"{text!r} can never match: write one slash for two")
    if text[0] == "!":
        raise BadPattern(f"{text!r}: there are no exceptions; deny that path, or write '\\!' for the character")
    if text[0] == "#":
        raise BadPattern(f"{text!r}: there are no comments; write '\\#' for the character")


def _start(text: str, names: Names) -> tuple[tuple[Segment, ...] | None, str]:
    """Where the pattern begins (``None``: nowhere, for this kind of caller), and what is left of it from a slash on."""
    if re.search(r"(?<!^)(?<!\\)\$\{", text):
        raise BadPattern(f"{text!r}: a ${{…}} can only stand at the beginning; write '\\${{' for the characters")
    if text[0] == "~":
        if text != "~" and text[1] != "/":
            raise BadPattern(f"{text!r}: only '~/' is known, the operator's home; write '\\~' for the character")
        return _literally(names.home), text[1:]
    if text.startswith("${"):
        variable, brace, rest = text.partition("}")
        known = {"${workspace": names.workspace, "${code": names.code, "${config": names.config}
        if variable not in known or not brace or rest[:1] not in ("", "/"):
            raise BadPattern(f"{text!r}: of these only '${{workspace}}/', '${{code}}/' and '${{config}}/' begin a path")
        return _literally(known[variable]), rest
    if text.startswith("/"):
        return (), text
    if text.startswith("**/"):
        return (), "/" + text
    if "/" in text[:-1]:
        raise BadPattern(f"{text!r} can never match, paths are absolute: write '/{text}', or '**/{text}' for any depth")
    return (BELOW,), "/" + text


def _literally(directory: str | None) -> tuple[Segment, ...] | None:
    return None if directory is None else tuple(globs.literal(name) for name in directory.split("/") if name)


def _segments(text: str, parts: Sequence[str]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in parts:
        if part == "**":
            segments.append(BELOW)
        elif "**" in re.sub(r"\\.", "", part):
            raise BadPattern(f"{text!r}: '**' is a whole name between slashes, as in '/data/**/*.txt'; write '*' here")
        else:
            segments.append(_segment(text, part))
    if segments and segments[-1] is BELOW:  # a "**" at the end is all that is inside
        segments[-1:] = [ANY_NAME, BELOW]
    return tuple(segments)


def _segment(text: str, part: str) -> Segment:
    items = globs.parse(part, NAME)
    if items in (globs.literal("."), globs.literal("..")):
        raise BadPattern(f"{text!r} can never match: paths are without '.' and '..'; write where it leads")
    return ANY_NAME if items == (Many(NAME),) else items


def _items(segments: Iterable[Segment]) -> tuple[Item, ...]:
    slash = globs.literal("/")
    return tuple(
        item for segment in segments for item in ((segment,) if isinstance(segment, Below) else slash + segment)
    )


@lru_cache(1024)
def _matcher(segments: tuple[Segment, ...]) -> globs.Matcher:
    floats, regex = _regex(segments)
    if floats:  # to search for it is quicker than to skip what is before it
        return re.compile(regex.removeprefix("/[^/]*")).search
    return re.compile(regex).match


def _regex(segments: Sequence[Segment]) -> tuple[bool, str]:
    """Whether it is found at any depth, and what then to search for, or else to match from the beginning.

    A pattern is blocks of segments with any number of others between them. The first place where a block fits is the
    right one, since what follows can begin anywhere behind it; only a last block that ends the path has to be the last.
    """
    blocks = [""]
    for segment in segments:
        if isinstance(segment, Below):
            blocks.append("")
        else:
            blocks[-1] += "/" + globs.regex(segment)
    end = r"\Z" if blocks[-1] or len(blocks) == 1 else r"(?:/|\Z)"
    first, *others = blocks
    middle = [block for block in others if block]
    if not first and len(middle) == 1:
        return True, middle[0] + end
    lazily = [rf"(?>(?s:.*?){block}(?=/))" for block in middle[:-1]]
    last = [f"(?s:.*){block}" for block in middle[-1:]]
    return False, first + ("(?=/)" if middle else "") + "".join(lazily + last) + end


def _nothing(what: str) -> None:
    """Matches nothing."""
