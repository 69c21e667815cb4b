import math
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.encoding import quantities
from tests.support.runs.rows import each_row

DURATIONS = {"200ms": 0.2, "5s": 5, "1.5m": 90, "2h": 7200, "1d": 86400, "0s": 0, 0: 0, 0.25: 0.25}
NO_DURATIONS: list[object] = ["", "5", "s", "-5s", "5 s", "5S", "1e3s", "\u0663s", "5s\n", "inf", "9" * 16 + "s", -1]
SIZES = {"512B": 512, "64K": 65536, "256M": 256 << 20, "1G": 1 << 30, "1.5G": 3 << 29, "1MiB": 1 << 20, "2T": 2 << 40}
MORE_SIZES = {0: 0, "0.1K": 102, "1.000000000000001K": 1024, "8388607T": 8388607 << 40}
NO_SIZES: list[object] = ["", "256", "256m", "256MB", "-1K", "1 K", "1.K", ".5K", "8388608T", "lots", -1, 1.0, 1 << 63]
SHARES = {"50%": 0.5, "150%": 1.5, "0.5%": 0.005, 50_000: 0.5, 25_000.0: 0.25}
NO_SHARES: list[object] = ["0%", 0, -1, "50", "%", "-5%", "50 %"]
NOTHING_AT_ALL: list[object] = [True, None, math.nan, math.inf, 10**400, [], {}]


@each_row(("said", "meant"), DURATIONS.items())
def test_a_duration_is_read_as_seconds(said: object, meant: float) -> None:
    assert quantities.seconds(said) == meant


@each_row(("said", "meant"), [*SIZES.items(), *MORE_SIZES.items()])
def test_a_size_is_read_as_bytes(said: object, meant: int) -> None:
    assert quantities.size(said) == meant


@each_row(("said", "meant"), SHARES.items())
def test_a_share_of_a_cpu_is_read_from_percent_or_microseconds(said: object, meant: float) -> None:
    assert quantities.cpu_share(said) == meant


@each_row(
    ("read", "said"),
    [(quantities.seconds, said) for said in NO_DURATIONS + NOTHING_AT_ALL]
    + [(quantities.size, said) for said in NO_SIZES + NOTHING_AT_ALL]
    + [(quantities.cpu_share, said) for said in NO_SHARES + NOTHING_AT_ALL],
)
def test_what_is_no_quantity_is_not_guessed_at(read: Callable[[object], object], said: object) -> None:
    assert read(said) is None


@given(
    st.integers(0, 10**9), st.sampled_from([("ms", "0.001"), ("s", "1"), ("m", "60"), ("h", "3600"), ("d", "86400")])
)
def test_a_duration_is_its_number_times_its_unit(number: int, unit: tuple[str, str]) -> None:
    name, factor = unit

    assert quantities.seconds(f"{number}{name}") == pytest.approx(float(number * Decimal(factor)))


@given(st.integers(0, 1 << 20), st.sampled_from(list(enumerate("BKMGT"))), st.booleans())
def test_a_size_is_its_number_times_its_unit(number: int, unit: tuple[int, str], long: bool) -> None:
    power, letter = unit
    suffix = letter + "iB" * (long and letter != "B")

    assert quantities.size(f"{number}{suffix}") == number << 10 * power
    assert quantities.size(number) == number
