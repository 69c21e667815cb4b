"""Points in time as they are typed and shown: ``10m`` ago, ``yesterday``, ``18:00``, ``2026-01-31 18:00``."""

import re
import time
from datetime import datetime, timedelta

import click

from agentos_sdk.encoding.quantities import seconds

FORMS = "10m, 1d, yesterday, today, now, 18:00 or 2026-01-31 18:00"
_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_time(text: str) -> float:
    """Seconds since the epoch of a duration before now, a local date or time, or a word; raises ``ValueError``.

    A time alone is today's, and a day is its first second.
    """
    if (ago := seconds(text)) is not None:
        return time.time() - ago
    if text == "now":
        return time.time()
    if text in _DAYS_AGO:
        midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - timedelta(days=_DAYS_AGO[text])).timestamp()
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
        text = f"{datetime.now():%Y-%m-%d} {text:0>5}"
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"expected {FORMS}") from None


def format_time(at: float) -> str:
    """``2026-01-31 18:00:00``, local, of seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def format_stamp(at: float, other_day: str = "%Y-%m-%d %H:%M:%S") -> str:
    """``18:00:00``; of another day than today as ``other_day`` says."""
    then = time.localtime(at)
    return time.strftime("%H:%M:%S" if then[:3] == time.localtime()[:3] else other_day, then)


def read_time(text: str | None, option: str) -> float | None:
    """Seconds since the epoch of an option's value."""
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
