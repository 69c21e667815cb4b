"""Fields of a request that don't reach the model's vendor, so that a program learns of them. No I/O.

Vendors add fields often and programs are written for many servers, so no field is refused for being unknown. But it may
change the answer, its price or what is safe. So all fields but the known ones are named: in a header, and in the audit
log. Known are those that the parsers read or refuse, and those that change none of these.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from .request_fields import Fields

Known: TypeAlias = Mapping[str, "Known | None"]
"""Known fields, and those within each: an object's, or those of all objects in an array. None: any."""

MAX_NAMED = 16  # clients refuse a header of 64 KiB
MORE = "more"  # stands for those beyond
_PLAIN = re.compile("[A-Za-z0-9_$-]{1,40}")  # others don't belong into a header


def known(*names: str, **inner: "Known | None") -> Known:
    return {**dict.fromkeys(names), **inner}


def list_left_out(request: Fields, fields: Known, first: Collection[str] = ()) -> list[str]:
    """Paths of the fields in a request that aren't known, behind those of ``first``, without indexes of arrays."""
    named = dict.fromkeys(first)
    for path in _unknown(request, fields, ""):
        if path not in named:
            if len(named) == MAX_NAMED:
                return [*named, MORE]
            named[path] = None
    return [*named]


def _unknown(request: Fields, fields: Known, before: str) -> Iterator[str]:
    for name in request.names:
        value = request.given(name)
        if name not in fields:
            if not _is_default(value):
                yield f"{before}{name if _PLAIN.fullmatch(name) else '?'}"
        elif (inner := fields[name]) is not None:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict):
                    yield from _unknown(type(request)(each), inner, f"{before}{name}.")


def _is_default(value: Any) -> bool:
    """Whether a field's value says what its absence says, with all three vendors."""
    return value in ("auto", [])
