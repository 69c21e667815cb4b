"""What the operator sees of new and changed tools of an MCP server: pure functions that make the text of an approval.

A server chooses all of the content, so each of its lines begins with ``+``, ``-`` or a space, and the rest is quoted
and escaped as in :mod:`agentos.permissions.approvals.page`. Nothing is cut: what has no room isn't asked about.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from agentos.permissions.approvals.page import escape, number_strange
from agentos.permissions.approvals.text import compare_lines, describe_field
from agentos.permissions.shown_lines import MARK

from .tool import FIELDS, Tool

MAX_TEXT: Final = 48 << 10  # characters of a text, escaped; the queue of approvals takes 64 KiB
LABELS: Final = {"inputSchema": "input schema", "outputSchema": "output schema"}  # of other fields the name is one


class Change(Struct, frozen=True):
    """A tool that the operator hasn't allowed as it is now; ``old`` is the version that was allowed, if any."""

    tool: Tool
    old: Tool | None = None


def describe_changes(server: str, changes: Sequence[Change]) -> tuple[str, Sequence[Change]]:
    """The text that shows these changes, and those of them that it shows: the first ones that have room. Blocks."""
    shown, lines, room = list[Change](), list[str](), MAX_TEXT
    for change in changes:
        found = list(_describe_change(server, change))
        size = sum(len(line) + 1 for line in found)
        if size <= room:
            room -= size
            lines += found
            shown.append(change)
    new = sum(change.old is None for change in shown)
    head = f"TOOLS of the MCP server {server}: {new} new, {len(shown) - new} changed"
    if len(shown) < len(changes):
        head += f" ({len(changes) - len(shown)} more have no room here)"
    return "\n".join([head, *lines]), shown


def fits(server: str, change: Change) -> bool:
    """Whether a text can show the change of this tool at all. Blocks."""
    return bool(describe_changes(server, [change])[1])


def _describe_change(server: str, change: Change) -> Iterator[str]:
    """The lines about one tool: its name, then each field that differs."""
    old, new = change.old.fields if change.old is not None else {}, change.tool.fields
    yield describe_field("changed " if change.old is not None else "new ", f"{server}.{change.tool.name}")
    added = list[str]()
    for field in FIELDS:
        before, after = _split(old.get(field)), _split(new.get(field))
        if field == "name" or before == after:
            continue
        added += after
        yield LABELS.get(field, field)
        yield from _describe_difference(before, after)
    yield from number_strange(change.tool.name, *added)


def _split(value: Any) -> list[str]:
    """The lines of a field, each with its line break: of a text its own, of anything else indented JSON."""
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    return [f"{line}\n" for line in text.split("\n")]


def _describe_difference(before: list[str], after: list[str]) -> Iterator[str]:
    for group in compare_lines(before, after):
        if before:
            yield f"@@ -{group[0][1] + 1} +{group[0][3] + 1} @@"
        for tag, i, j, k, m in group:
            yield from (_quote(" " if tag == "equal" else "-", line) for line in before[i:j])
            yield from (_quote("+", line) for line in after[k:m] if tag != "equal")


def _quote(sign: str, line: str) -> str:
    return f"{sign} {MARK}{escape(line[:-1], ordered=False)}"
