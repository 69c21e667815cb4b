"""Points in time as a person types them."""

import time
from datetime import datetime, timedelta

import pytest

from agentos.userland.cli.times import parse_time
from tests.support.runs.rows import each_row


@each_row(("text", "ago"), [("10m", 600), ("2h", 7200), ("1d", 86400), ("0s", 0), ("now", 0)])
def test_a_duration_ends_now(text: str, ago: float) -> None:
    before = time.time()
    assert before - ago <= parse_time(text) <= time.time() - ago


def test_a_day_begins_at_midnight() -> None:
    midnight = datetime.fromtimestamp(parse_time("today"))
    assert (midnight.hour, midnight.minute, midnight.second) == (0, 0, 0)
    assert midnight <= datetime.now() < midnight + timedelta(days=1, hours=1)  # a day may have 25 hours
    assert datetime.fromtimestamp(parse_time("yesterday")) == midnight - timedelta(days=1)


def test_dates_and_times_are_local() -> None:
    assert parse_time("2026-01-31 18:00") == datetime(2026, 1, 31, 18).timestamp()
    assert parse_time("2026-01-31") == datetime(2026, 1, 31).timestamp()
    assert parse_time("2026-01-31T18:00:00+00:00") == 1769882400
    assert datetime.fromtimestamp(parse_time("8:05")).strftime("%H:%M:%S") == "08:05:00"


@each_row("text", ["soon", "", "25:00", "2026-13-01", "-10m", "10 m", "9999999999-01-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected 10m, 1d, yesterday"):
        parse_time(text)
