"""Memory and CPU time of agents as cells of a table; what isn't known is ``-``."""

from collections.abc import Mapping
from typing import Any

UNKNOWN = "-"


def describe_memory(agent: Mapping[str, Any]) -> str:
    """The memory of a life; of one that has ended its peak."""
    if agent["running"]:
        return format_bytes(agent.get("memory_bytes"))
    peak = agent.get("peak_memory_bytes")
    return UNKNOWN if peak is None else f"peak {format_bytes(peak)}"


def format_bytes(size: int | None, unit_of: int | None = None) -> str:
    """``12B``, ``99.5K``, ``0.4M``, ``9876.5M``, ``10.0G``; in the unit of the size ``unit_of``, if that is given."""
    if size is None:
        return UNKNOWN
    like = size if unit_of is None else unit_of
    if like < 1 << 10:
        return f"{size}B"
    unit, letter = (1 << 10, "K") if like < 100 << 10 else (1 << 20, "M") if like < 10 << 30 else (1 << 30, "G")
    return f"{size / unit:.1f}{letter}"


def format_share(used: int | None, total: int | None) -> str:
    """``73.2M of 512.0M``: both in one unit."""
    return format_bytes(used) if total is None else f"{format_bytes(used, total)} of {format_bytes(total)}"


def format_cpu(seconds: float | None) -> str:
    """Minutes, seconds and tenths, as top(1) has them: ``0:00.1``, ``75:03.9``."""
    if seconds is None:
        return UNKNOWN
    minutes, tenths = divmod(int(seconds * 10), 600)
    return f"{minutes}:{tenths / 10:04.1f}"
