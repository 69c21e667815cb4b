"""Parsing of durations, sizes and CPU shares: 5s, 256M, 50%."""

import math
import re
from typing import NewType

Seconds = NewType("Seconds", float)
Size = NewType("Size", int)  # bytes
CpuShare = NewType("CpuShare", float)  # fraction of one CPU: 0.5 is half of one

EXPECTED_DURATION = "a duration such as 5s"
EXPECTED_SIZE = "a size such as 256M"
EXPECTED_CPU_SHARE = "a share of one CPU such as 50%"

MAX_SIZE = (1 << 63) - 1  # bytes; the most that the kernel and its database can hold
CPU_PERIOD = 100_000  # microseconds; a bare number is a quota in cgroup v2's default period

# At most 15 digits before the point: a float can't hold more.
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)"
_DURATION = re.compile(_NUMBER + "(ms|[smhd])")
_SIZE = re.compile(_NUMBER + "(B|[KMGT](?:iB)?)")
_PERCENT = re.compile(_NUMBER + "%")

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seconds(data: object) -> Seconds | None:
    """``200ms``, ``5s``, ``1m``, ``2h``, ``1d`` or a number of seconds; ``None`` if it's none of them."""
    if isinstance(data, str):
        found = _DURATION.fullmatch(data)
        return Seconds(float(found[1]) * _SECONDS[found[2]]) if found else None
    number = _number(data)
    return Seconds(number) if number is not None and number >= 0 else None


def size(data: object) -> Size | None:
    """``512B``, ``64K``, ``256M``, ``1.5G`` (K is 1024) or a number of bytes; ``None`` if it's none of them.

    A fraction of a byte is dropped.
    """
    if isinstance(data, str):
        found = _SIZE.fullmatch(data)
        if found is None:
            return None
        whole, _, part = found[1].partition(".")
        unit = _BYTES[found[2][0]]
        data = int(whole) * unit + int(part or "0") * unit // 10 ** len(part)
    return Size(data) if type(data) is int and 0 <= data <= MAX_SIZE else None


def cpu_share(data: object) -> CpuShare | None:
    """``50%`` of one CPU, or microseconds of CPU time per 100 ms; ``None`` if it's neither. Never zero."""
    found = _PERCENT.fullmatch(data) if isinstance(data, str) else None
    number = _number(data)
    if found:
        share = float(found[1]) / 100
    elif number is not None:
        share = number / CPU_PERIOD
    else:
        return None
    return CpuShare(share) if share > 0 else None


def _number(data: object) -> float | None:
    if type(data) is not int and type(data) is not float:
        return None
    try:
        number = float(data)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def duration(seconds: float) -> str:
    """A short text for people: ``4s``, ``3m12s``, ``2h05m``, ``1d``."""
    whole = int(seconds)
    for unit, letter, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit}{letter}" + (f"{rest:02}{smaller}" if rest else "")
    return f"{whole}s"
