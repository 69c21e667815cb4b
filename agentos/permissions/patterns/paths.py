"""Path patterns, in the syntax of .gitignore."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache

from attrs import frozen

from . import globs
from .base import BadPattern, Names
from .globs import NAME, Below, Item, Many, One

MAX_PATH_LENGTH = 4096  # characters of a path (PATH_MAX): no system call takes more
MAX_PATTERN_LENGTH = 1024

ANY_NAME = (One(NAME), Many(NAME))
BELOW = Below()
NO_NAMES = Names("")

Segment = tuple[One | Many, ...] | Below


@frozen
class PathPattern:
    """A path pattern.

    ``what`` is an absolute path without ``.``, ``..`` and doubled slashes, decoded by ``os.fsdecode``. A grant matches
    what the pattern names: with a slash at its end everything below that directory, without one that file alone. A
    denial matches what it names and everything below. Case matters. A path that is too long is never granted and always
    denied.
    """

    text: str
    segments: tuple[Segment, ...] | None  # None if the pattern matches nothing
    directory: bool  # whether it has to be a directory

    def matches(self, what: str, *, deny: bool) -> bool:
        if len(what) > MAX_PATH_LENGTH:
            return deny
        return (self._denied if deny else self._granted)(what) is not None

    def covers(self, other: "PathPattern", *, deny: bool) -> bool:
        if self.segments is None or other.segments is None:  # a variable of it has no value for this caller
            return False
        if not self.matches(other._example, deny=deny):  # a fast test that rules out most pairs
            return False
        return globs.is_included(_glob_items(other.as_grant), _glob_items(self.as_denial if deny else self.as_grant))

    @cached_property
    def word(self) -> str | None:
        """One of the :func:`words` of every path that it matches; ``None`` if they share none."""
        for segment in reversed(self.segments or ()):
            if not isinstance(segment, Below):
                found = max(globs.shared_pieces(segment, "."), key=len, default=None)
                if found is not None:
                    return found
        return None

    @property
    def as_grant(self) -> tuple[Segment, ...]:
        return (*(self.segments or ()), ANY_NAME, BELOW) if self.directory else self.segments or ()

    @property
    def as_denial(self) -> tuple[Segment, ...]:
        return (*(self.segments or ()), BELOW)

    @cached_property
    def _granted(self) -> globs.Matcher:
        return _compile_matcher(self.as_grant) if self.segments is not None else _match_nothing

    @cached_property
    def _denied(self) -> globs.Matcher:
        return _compile_matcher(self.as_denial) if self.segments is not None else _match_nothing

    @cached_property
    def _example(self) -> str:
        return globs.shortest(_glob_items(self.as_grant))


def parse_path_pattern(text: str, names: Names) -> PathPattern:
    """Parse a path pattern; raises ``BadPattern`` if it is invalid or can never match an absolute path."""
    return _parse(text, names if text.startswith(("~", "${")) else NO_NAMES)  # the same for all callers: parsed once


@lru_cache(1024)
def _parse(text: str, names: Names) -> PathPattern:
    _check_syntax(text)
    start, rest = _parse_prefix(text, names)
    inner = rest.removeprefix("/").removesuffix("/")
    below = _parse_segments(text, inner.split("/") if inner else [])
    return PathPattern(text, None if start is None else (*start, *below), rest.endswith("/"))


def words(what: str) -> Sequence[str]:
    """The parts of a path between slashes and dots."""
    return what.replace("/", ".").split(".")


def match_any(patterns: Iterable[PathPattern], *, deny: bool) -> Callable[[str], bool]:
    """A predicate: whether any of the patterns matches. One combined regex takes a tenth of a loop's time."""
    regexes = [_regex(each.as_denial if deny else each.as_grant) for each in patterns if each.segments is not None]
    search = _compile_any(tuple(regex for floats, regex in regexes if floats))
    match = _compile_any(tuple(regex for floats, regex in regexes if not floats))

    def matches(what: str) -> bool:
        if len(what) > MAX_PATH_LENGTH:
            return deny
        return match.match(what) is not None or search.search(what) is not None

    return matches


@lru_cache(64)
def _compile_any(regexes: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(regexes) or r"(?!)")


def _check_syntax(text: str) -> None:
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '/**' for every path")
    if text == "/":
        raise BadPattern("'/' names no file: write '/**' for every path")
    if len(text) > MAX_PATTERN_LENGTH:
        raise BadPattern(f"{text[:40]!r}… is longer than {MAX_PATTERN_LENGTH} characters: write '*' for a part of it")
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


def _parse_prefix(text: str, names: Names) -> tuple[tuple[Segment, ...] | None, str]:
    """The segments of the prefix (``None``: no value for this caller), and the rest from a slash on."""
    if re.search(r"(?<!^)(?<!\\)\$\{", text):
        raise BadPattern(f"{text!r}: a ${{…}} can only stand at the beginning; write '\\${{' for the characters")
    if text[0] == "~":
        if text != "~" and text[1] != "/":
            raise BadPattern(f"{text!r}: only '~/' is known, the operator's home; write '\\~' for the character")
        return _literal_segments(names.home), text[1:]
    if text.startswith("${"):
        variable, brace, rest = text.partition("}")
        known = {"${workspace": names.workspace, "${code": names.code, "${config": names.config}
        if variable not in known or not brace or rest[:1] not in ("", "/"):
            raise BadPattern(f"{text!r}: of these only '${{workspace}}/', '${{code}}/' and '${{config}}/' begin a path")
        return _literal_segments(known[variable]), rest
    if text.startswith("/"):
        return (), text
    if text.startswith("**/"):
        return (), "/" + text
    if "/" in text[:-1]:
        raise BadPattern(f"{text!r} can never match, paths are absolute: write '/{text}', or '**/{text}' for any depth")
    return (BELOW,), "/" + text


def _literal_segments(directory: str | None) -> tuple[Segment, ...] | None:
    return None if directory is None else tuple(globs.literal(name) for name in directory.split("/") if name)


def _parse_segments(text: str, parts: Sequence[str]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in parts:
        if part == "**":
            segments.append(BELOW)
        elif "**" in re.sub(r"\\.", "", part):
            raise BadPattern(f"{text!r}: '**' is a whole name between slashes, as in '/data/**/*.txt'; write '*' here")
        else:
            segments.append(_parse_segment(text, part))
    if segments and segments[-1] is BELOW:  # a "**" at the end matches everything inside
        segments[-1:] = [ANY_NAME, BELOW]
    return tuple(segments)


def _parse_segment(text: str, part: str) -> Segment:
    items = globs.parse(part, NAME)
    if items in (globs.literal("."), globs.literal("..")):
        raise BadPattern(f"{text!r} can never match: paths are without '.' and '..'; write where it leads")
    return ANY_NAME if items == (Many(NAME),) else items


def _glob_items(segments: Iterable[Segment]) -> tuple[Item, ...]:
    slash = globs.literal("/")
    return tuple(
        item for segment in segments for item in ((segment,) if isinstance(segment, Below) else slash + segment)
    )


@lru_cache(1024)
def _compile_matcher(segments: tuple[Segment, ...]) -> globs.Matcher:
    floats, regex = _regex(segments)
    if floats:  # searching is faster than matching a skipped prefix
        return re.compile(regex.removeprefix("/[^/]*")).search
    return re.compile(regex).match


def _regex(segments: Sequence[Segment]) -> tuple[bool, str]:
    """Whether the regex is to be searched for at any depth, else matched from the start; and the regex.

    A pattern is a series of blocks of segments with any number of other segments between them. The first place where a
    block fits is always right, since the next block can begin anywhere behind it. Only a last block that ends the path
    has to be at the end.
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


def _match_nothing(what: str) -> None:
    """Matches nothing."""
