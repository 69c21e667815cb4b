"""When schedules are due: intervals, cron expressions, daylight saving, and a clock that is set."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.waking.schedule import Schedule
from agentos_sdk.encoding.codec import Invalid, Seconds, decode

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, fold: int = 0) -> float:
    """Seconds since the epoch of a time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def show(when: float) -> str:
    return f"{datetime.fromtimestamp(when, BERLIN):%Y-%m-%d %H:%M %Z}"


def cron(text: str, **more: object) -> Schedule:
    return decode(Schedule, {"cron": text, "timezone": "Europe/Berlin", **more})


def list_times(schedule: Schedule, after: float, count: int) -> list[str]:
    times = [after]
    for _ in range(count):
        times.append(schedule.find_next(times[-1]))
    return [show(one) for one in times[1:]]


def test_a_cron_expression_is_read_in_its_time_zone() -> None:
    found = list_times(cron("0 3 * * 1-5"), at("2026-11-26 12:00"), 3)

    assert found == ["2026-11-27 03:00 CET", "2026-11-30 03:00 CET", "2026-12-01 03:00 CET"]


def test_a_time_that_summer_time_skips_is_due_right_after_the_gap() -> None:
    found = list_times(cron("30 2 * * *"), at("2026-03-28 02:30"), 2)

    assert found == ["2026-03-29 03:00 CEST", "2026-03-30 02:30 CEST"]


def test_a_time_that_occurs_twice_when_summer_time_ends_is_due_once() -> None:
    found = list_times(cron("30 2 * * *"), at("2026-10-24 02:30"), 2)

    assert found == ["2026-10-25 02:30 CEST", "2026-10-26 02:30 CET"]


def test_each_hour_means_each_hour_that_passes_also_when_summer_time_ends() -> None:
    found = list_times(cron("30 * * * *"), at("2026-10-25 01:30"), 3)

    assert found == ["2026-10-25 02:30 CEST", "2026-10-25 02:30 CET", "2026-10-25 03:30 CET"]


@pytest.mark.parametrize("text", ["45 2 * * *", "0,15,30,45 2 * * *", "*/10 2 * * *", "5 * * * *"])
@pytest.mark.parametrize("minutes", range(0, 60, 7))
def test_the_next_time_is_later_also_in_an_hour_that_the_clock_shows_again(text: str, minutes: int) -> None:
    after = at(f"2026-10-25 02:{minutes:02}", fold=1)

    assert cron(text).find_next(after) > after


@given(st.floats(1e9, 4e9), st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 29 2 *", "0 3 1 * 1", "15 2,3 * * 0"]))
def test_the_next_time_is_always_later(after: float, text: str) -> None:
    assert cron(text).find_next(after) > after


def test_an_interval_has_nothing_to_do_with_the_clock_that_people_read() -> None:
    schedule = Schedule(every=Seconds(HOUR))

    assert schedule.find_next(at("2026-03-29 01:30")) == at("2026-03-29 03:30")


def test_times_that_passed_while_no_kernel_ran_are_caught_up_once_or_not_at_all() -> None:
    last, now = at("2026-11-20 03:00"), at("2026-11-23 12:00")

    assert show(cron("0 3 * * *", catch_up=True).find_first(last, now)) == "2026-11-21 03:00 CET"
    assert show(cron("0 3 * * *").find_first(last, now)) == "2026-11-24 03:00 CET"
    assert show(cron("0 3 * * *").find_next(cron("0 3 * * *").reach(last, now))) == "2026-11-24 03:00 CET"


def test_an_interval_keeps_its_distance_from_the_first_run() -> None:
    schedule = Schedule(every=Seconds(HOUR))

    assert schedule.find_first(1000.0, 1000.0 + 2.5 * HOUR) == 1000.0 + 3 * HOUR
    assert schedule.reach(1000.0, 1000.0 + 2.5 * HOUR) == 1000.0 + 2 * HOUR


def test_a_clock_that_is_set_back_repeats_no_time_of_the_day_unless_it_was_wrong_before() -> None:
    last = at("2026-11-20 03:00")

    assert cron("0 3 * * *").correct(last, last - 0.5 * HOUR) == last
    assert cron("0 3 * * *").correct(last, last - 4 * HOUR) == last - 4 * HOUR
    assert cron("0 3 * * *").correct(last, last + HOUR) == last


@pytest.mark.parametrize("schedule", [Schedule(every=Seconds(60.0)), cron("*/5 * * * *"), cron("0 * * * *")])
def test_a_clock_that_is_set_back_holds_up_no_schedule_that_names_no_time_of_the_day(schedule: Schedule) -> None:
    assert schedule.correct(5000.0, 4000.0) == 4000.0


@given(st.floats(1, 1e7), st.floats(1e9, 2e9), st.floats(0, 1e8))
def test_what_is_due_after_the_present_time_is_in_the_future(every: float, last: float, passed: float) -> None:
    schedule, now = Schedule(every=Seconds(every)), last + passed

    assert now < schedule.find_next(schedule.reach(last, now)) <= now + every + 1e-6


@pytest.mark.parametrize("schedule", [Schedule(every=Seconds(60.0)), cron("*/5 * * * *"), cron("0 3 * * *")])
def test_a_clock_that_steps_back_by_less_than_a_second_repeats_nothing(schedule: Schedule) -> None:
    assert schedule.correct(5000.0, 4999.5) == 5000.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "expected exactly one of every and cron"),
        ({"every": "1h", "cron": "* * * * *"}, "expected exactly one of every and cron"),
        ({"every": "0.5s"}, "every: expected a duration from 1s to 366d"),
        ({"cron": "0 3 * *"}, "cron: expected five fields"),
        ({"cron": "0 0 3 * * *"}, "cron: expected five fields"),
        ({"cron": "0 3 30 2 *"}, "cron: expected five fields as in crontab(5) that have a next time"),
        ({"cron": "@daily"}, "cron: expected five fields"),
        ({"cron": "0 3 * * *", "timezone": "Berlin"}, "timezone: expected a time zone that this host knows"),
        ({"cron": "0 3 * * *", "timezone": "../../etc/passwd"}, "timezone: expected a time zone"),
        ({"cron": "0 3 * * *", "timezone": ""}, "timezone: expected a time zone"),
        ({"every": "1h", "timezone": "UTC"}, "timezone: only times of cron are in a time zone"),
        ({"every": "1m", "jitter": "1m"}, "jitter: expected less than every"),
        ({"cron": "0 3 * * *", "jitter": "2d"}, "jitter: expected a duration of at most 1d"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(data: object, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(Schedule, data)

    assert message in str(caught.value)


def test_a_schedule_is_shown_as_it_is_written() -> None:
    assert str(Schedule(every=Seconds(90.0))) == "every 1m30s"
    assert str(cron("0 3 * * 1-5")) == "cron 0 3 * * 1-5 Europe/Berlin"
