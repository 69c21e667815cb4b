"""Sets one member in the text of a JSON file, and leaves every other byte as it is.

Configuration files of editors may have comments and commas behind the last member, which a parser would lose.
"""

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

BETWEEN = re.compile(r"(?:[\s\ufeff]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)  # white space and comments
SCALAR = re.compile(r"[-+.\w]+")
NOT_STRICT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\r\n]*|/\*.*?\*/|,(?=(?:\s|//[^\r\n]*|/\*.*?\*/)*[}\]])', re.DOTALL)
LINE_COMMENT = re.compile(r"[ \t]*//[^\r\n]*")
CLOSING = {"{": "}", "[": "]"}
INDENT = "  "


class NotJSON(ValueError):
    """The text isn't a JSON object, or has something else where an object is needed."""


class Member(NamedTuple):
    """A member of an object: where its key begins, and where its value begins and ends."""

    name: str
    key: int
    value: int
    end: int


def get_member(text: str, table: str, name: str) -> Any:
    """The value of ``text[table][name]``, ``None`` if there is none. Raises :class:`NotJSON`."""
    found = _find(text, _root(text), table)
    inner = _find(text, _object(text, found, table), name) if found else None
    return json.loads(NOT_STRICT.sub(lambda found: found[1] or "", text[inner.value : inner.end])) if inner else None


def set_member(text: str, table: str, name: str, value: Any) -> str:
    """The text with ``text[table][name]`` set to a JSON value; an empty text is an empty object.

    Raises :class:`NotJSON`.
    """
    text = text if text.strip("\ufeff \t\r\n") else "{}\n"
    root = _root(text)
    found = _find(text, root, table)
    if found is None:
        return _insert(text, root, table, {name: value})
    inside = _object(text, found, table)
    inner = _find(text, inside, name)
    if inner is None:
        return _insert(text, inside, name, value)
    return text[: inner.value] + _format(text, value, _line_indent(text, inner.key)) + text[inner.end :]


def _insert(text: str, start: int, name: str, value: Any) -> str:
    """The text with a further member, as the last one of the object that begins at ``start``."""
    newline = _newline(text)
    members = list(_members(text, start))
    if not members:
        outer = _line_indent(text, start)
        indent = outer + _unit(text)
        close = "" if newline[-1] in text[start : _end(text, start)] else newline + outer
        member = f"{newline}{indent}{json.dumps(name)}: {_format(text, value, indent)}{close}"
        return text[: start + 1] + member + text[start + 1 :]
    last = members[-1]
    after = _skip(text, last.end)
    has_comma = text[after] == ","
    at = after + 1 if has_comma else last.end
    comment = LINE_COMMENT.match(text, at)
    at = comment.end() if comment else at
    own_line = newline[-1] in text[start : members[0].key]
    indent = _line_indent(text, members[0].key) if own_line else _line_indent(text, start)
    member = (newline + indent if own_line else " ") + f"{json.dumps(name)}: {_format(text, value, indent)}"
    before = text[: last.end] + ("" if has_comma else ",") + text[last.end : at]
    return before + member + ("," if has_comma else "") + text[at:]


def _root(text: str) -> int:
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise NotJSON("expected a JSON object")
    end = _skip(text, _end(text, start))
    if end != len(text):
        raise NotJSON(f"line {_line(text, end)}: expected nothing behind the object")
    return start


def _object(text: str, member: Member, name: str) -> int:
    if text[member.value] != "{":
        raise NotJSON(f"line {_line(text, member.key)}: {name}: expected an object")
    return member.value


def _find(text: str, start: int, name: str) -> Member | None:
    found = [member for member in _members(text, start) if member.name == name]
    if len(found) > 1:
        raise NotJSON(f"line {_line(text, found[1].key)}: {name} is there twice")
    return found[0] if found else None


def _members(text: str, start: int) -> Iterator[Member]:
    """The members of the object that begins at ``start``."""
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise NotJSON(f'line {_line(text, at)}: expected a name in ""')
        name, end = _string(text, at)
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            raise NotJSON(f"line {_line(text, colon)}: expected a :")
        value = _skip(text, colon + 1)
        end = _end(text, value)
        yield Member(name, at, value, end)
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "}":
            raise NotJSON(f"line {_line(text, at)}: expected a , or }}")


def _end(text: str, start: int) -> int:
    """Where the value ends that begins at ``start``."""
    due: list[str] = []  # closing brackets
    at = start
    while True:
        char = text[at : at + 1]
        if char == '"':
            at = _string(text, at)[1]
        elif char in CLOSING:
            due.append(CLOSING[char])
            at += 1
        elif due and char == due[-1]:
            due.pop()
            at += 1
        elif due and char in (",", ":"):
            at += 1
        elif scalar := SCALAR.match(text, at):
            at = scalar.end()
        else:
            raise NotJSON(f"line {_line(text, at)}: expected a value" + ("" if char else ", but the text ends"))
        if not due:
            return at
        at = _skip(text, at)


def _string(text: str, start: int) -> tuple[str, int]:
    try:
        found: tuple[str, int] = scanstring(text, start + 1, True)
    except ValueError as error:
        raise NotJSON(f"line {_line(text, start)}: {error}") from None
    return found


def _skip(text: str, at: int) -> int:
    found = BETWEEN.match(text, at)
    assert found is not None  # it also matches nothing
    return found.end()


def _format(text: str, value: Any, indent: str) -> str:
    """A value in several lines, of which all but the first are indented."""
    made = json.dumps(value, indent=_unit(text), ensure_ascii=False)
    return made.replace("\n", _newline(text) + indent)


def _unit(text: str) -> str:
    """By how much the file indents: as its first member."""
    start = _skip(text, 0)
    first = next(_members(text, start), None)
    found = text[start + 1 : first.key].rpartition("\n")[2] if first and "\n" in text[start : first.key] else ""
    return found if found and not found.strip(" \t") else INDENT


def _line_indent(text: str, at: int) -> str:
    """The white space that the line of this place begins with."""
    line = text[max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
