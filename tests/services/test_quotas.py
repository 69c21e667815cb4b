"""Quotas against a model that remembers every reservation, and what happens at the edges of windows."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from agentos.services.quotas import MONEY_UNITS, Quota, Quotas, Reservation, Row, window_index
from agentos_sdk.errors import QuotaExceeded
from tests.support.runs.rounds import rounds

MINUTE, HOUR = 60.0, 3600.0
NOON = 12 * HOUR
PATHS = [("team",), ("team", "writer"), ("team", "writer", "helper"), ("team", "reader"), ("loner",)]
KINDS = ["tokens", "calls", "money"]
Entry = tuple[str, str, float, int, int]  # name, kind, per, window, amount
AMOUNTS = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 60))


def quotas(**limits: Quota) -> Quotas:
    made = Quotas()
    for name, quota in limits.items():
        made.limit(name, [quota])
    return made


class QuotasModel(RuleBasedStateMachine):
    """Each counter is the sum over the calls that were begun in its window, and what others took beyond theirs."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.under_way = 0
        self.quotas = Quotas()
        self.limits: dict[str, list[Quota]] = {
            "team": [Quota("tokens", 100, MINUTE), Quota("tokens", 250, HOUR), Quota("calls", 9, MINUTE)],
            "writer": [Quota("tokens", 70, MINUTE), Quota("money", 80, HOUR)],
            "helper": [Quota("money", 50, MINUTE)],
            "loner": [Quota("tokens", 100, MINUTE), Quota("calls", 0, HOUR)],
        }
        for name, each in self.limits.items():
            self.quotas.limit(name, each)
        self.kept: list[Entry] = []  # reserved now
        self.spent: list[Entry] = []
        self.beyond: list[Entry] = []  # of what was spent, what had not been reserved

    def sum(self, entries: list[Entry], name: str, quota: Quota) -> int:
        window = window_index(quota.per, self.now)
        return sum(entry[4] for entry in entries if entry[:4] == (name, quota.what, quota.per, window))

    @rule(seconds=st.sampled_from([0.0, 0.5, 7.0, 59.0, MINUTE, 600.0, HOUR]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=made, path=st.sampled_from(PATHS), amounts=AMOUNTS)
    def reserve(self, path: tuple[str, ...], amounts: dict[str, int]) -> object:
        concerned = [(n, q) for n in path for q in self.limits.get(n, []) if q.what in amounts]
        full = [
            (name, quota)
            for name, quota in concerned
            if max(0, quota.most - self.sum(self.kept, name, quota) - self.sum(self.spent, name, quota))
            < amounts[quota.what]
        ]
        before = self.quotas.export(self.now)
        if full:
            with pytest.raises(QuotaExceeded) as caught:
                self.quotas.reserve(path, amounts, self.now)
            details = caught.value.details
            assert (details["name"], details["what"], details["per"]) in [(n, q.what, q.per) for n, q in full]
            assert self.quotas.export(self.now) == before
            return multiple()
        reservation = self.quotas.reserve(path, amounts, self.now)
        entries = [(n, q.what, q.per, window_index(q.per, self.now), amounts[q.what]) for n, q in concerned]
        self.kept += entries
        self.under_way += 1
        return reservation, amounts, entries

    @rule(call=consumes(made), part=st.sampled_from([0.0, 0.3, 1.0, 1.7]), forget=st.booleans())
    def settle(self, call: tuple[Reservation, dict[str, int], list[Entry]], part: float, forget: bool) -> None:
        reservation, amounts, entries = call
        used = {what: int(amount * part) for what, amount in amounts.items()}
        if forget:
            self.quotas.drop_old(self.now)
        self.quotas.settle(reservation, used, self.now)
        self.under_way -= 1
        for entry in entries:
            self.kept.remove(entry)
            name, what, per, window, reserved = entry
            present = window_index(per, self.now)
            over = max(0, used[what] - reserved)
            self.beyond.append((name, what, per, present, over))
            self.spent.append((name, what, per, window, used[what]) if window == present else self.beyond[-1])

    @precondition(lambda self: not self.under_way)
    @rule()
    def the_kernel_restarts(self) -> None:
        rows = json.loads(json.dumps(self.quotas.export(self.now)))
        self.quotas = Quotas(Row(*row) for row in rows)
        for name, each in self.limits.items():
            self.quotas.limit(name, each)

    @invariant()
    def counters_are_what_was_kept_and_spent(self) -> None:
        for name, limits in self.limits.items():
            for standing, quota in zip(self.quotas.list_states([name], self.now), limits, strict=True):
                assert standing.quota == quota
                assert standing.reserved == self.sum(self.kept, name, quota)
                assert standing.settled == self.sum(self.spent, name, quota)
                assert standing.renews_at > self.now

    @invariant()
    def only_what_nobody_could_foresee_goes_over_a_limit(self) -> None:
        for name, limits in self.limits.items():
            for standing, quota in zip(self.quotas.list_states([name], self.now), limits, strict=True):
                beyond = self.sum(self.beyond, name, quota)
                assert standing.settled + standing.reserved - beyond <= quota.most

    @invariant()
    def export_and_import_lose_nothing(self) -> None:
        rows = self.quotas.export(self.now)
        assert Quotas(rows).export(self.now) == rows


TestQuotasModel = QuotasModel.TestCase
TestQuotasModel.settings = settings(max_examples=rounds(60), stateful_step_count=30)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1), st.floats(0, 200)), max_size=30))
def test_calls_that_use_no_more_than_they_reserved_never_exceed_a_limit(calls: list[tuple[int, float, float]]) -> None:
    kept = quotas(team=Quota("tokens", 100, MINUTE), writer=Quota("tokens", 80, MINUTE))
    now, under_way = NOON, []

    for amount, part, gap in calls:
        now += gap
        try:
            under_way.append((kept.reserve(["team", "writer"], {"tokens": amount}, now), int(amount * part)))
        except QuotaExceeded:
            if under_way:
                reservation, used = under_way.pop(0)
                kept.settle(reservation, {"tokens": used}, now)

        assert all(
            each.settled + each.reserved <= each.quota.most for each in kept.list_states(["team", "writer"], now)
        )


@given(st.integers(0, 100), st.integers(0, 100))
def test_settling_returns_what_was_not_used(reserved: int, used: int) -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))

    kept.settle(kept.reserve(["writer"], {"tokens": reserved}, NOON), {"tokens": min(used, reserved)}, NOON)

    assert kept.list_states(["writer"], NOON)[0].left == 100 - min(used, reserved)
    assert kept.list_states(["writer"], NOON)[0].reserved == 0


def test_a_reservation_needs_room_everywhere_above_and_takes_none_where_it_has_not() -> None:
    kept = quotas(team=Quota("tokens", 100, MINUTE), writer=Quota("tokens", 80, MINUTE))
    kept.reserve(["team", "reader"], {"tokens": 50}, NOON)

    with pytest.raises(QuotaExceeded) as caught:
        kept.reserve(["team", "writer"], {"tokens": 60}, NOON)

    assert caught.value.details["name"] == "team"
    assert [each.reserved for each in kept.list_states(["team", "writer"], NOON)] == [50, 0]
    kept.reserve(["team", "writer"], {"tokens": 50}, NOON)


def test_a_refusal_says_which_quota_and_when_it_renews() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    kept.settle(kept.reserve(["writer"], {"tokens": 90}, NOON), {"tokens": 90}, NOON)

    with pytest.raises(QuotaExceeded) as caught:
        kept.reserve(["writer"], {"tokens": 20}, NOON + 12.5)

    assert str(caught.value) == (
        "tokens: the quota of 'writer' is 100 per 1m, of which 90 used and 0 reserved; "
        "this needs 20 at least: it renews in 48s"
    )
    assert caught.value.details == {
        "name": "writer",
        "what": "tokens",
        "most": 100,
        "per": MINUTE,
        "renews_at": NOON + MINUTE,
    }
    kept.reserve(["writer"], {"tokens": 20}, NOON + MINUTE)


def test_of_several_refusals_the_one_that_lasts_longest_is_told() -> None:
    kept = Quotas()
    kept.limit("writer", [Quota("tokens", 10, MINUTE), Quota("tokens", 15, HOUR), Quota("calls", 5, MINUTE)])
    kept.reserve(["writer"], {"tokens": 10, "calls": 5}, NOON)

    with pytest.raises(QuotaExceeded) as caught:
        kept.reserve(["writer"], {"tokens": 10, "calls": 1}, NOON)

    assert caught.value.details["renews_at"] == NOON + HOUR


def test_what_is_more_than_a_whole_window_allows_never_fits() -> None:
    kept = quotas(writer=Quota("money", MONEY_UNITS // 2, HOUR))

    with pytest.raises(QuotaExceeded, match=r"'writer' is 0\.5 per 1h, and this needs 0\.75 at least: it never fits"):
        kept.reserve(["writer"], {"money": MONEY_UNITS * 3 // 4}, NOON)


def test_a_reset_leaves_what_calls_of_this_window_hold_and_nothing_of_ended_ones() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    kept.reserve(["writer"], {"tokens": 40}, NOON)
    later = NOON + MINUTE
    under_way = kept.reserve(["writer"], {"tokens": 30}, later)
    kept.settle(kept.reserve(["writer"], {"tokens": 20}, later), {"tokens": 20}, later)

    [row] = kept.reset("writer", later)

    assert (row.settled, row.reserved) == (0, 30)
    kept.settle(under_way, {"tokens": 30}, later)
    assert kept.list_states(["writer"], later)[0].left == 70


def test_the_counters_of_a_name_outlive_its_limit() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    kept.reserve(["writer"], {"tokens": 100}, NOON)

    kept.limit("writer", [])
    kept.reserve(["writer"], {"tokens": 1000}, NOON)
    kept.limit("writer", [Quota("tokens", 100, MINUTE)])

    with pytest.raises(QuotaExceeded):
        kept.reserve(["writer"], {"tokens": 1}, NOON)


def test_what_a_dead_kernel_had_reserved_stays_so_until_its_window_ends() -> None:
    before = quotas(writer=Quota("tokens", 100, MINUTE))
    before.reserve(["writer"], {"tokens": 90}, NOON)

    after = Quotas(before.export(NOON))
    after.limit("writer", [Quota("tokens", 100, MINUTE)])

    with pytest.raises(QuotaExceeded):
        after.reserve(["writer"], {"tokens": 20}, NOON + 59)
    after.reserve(["writer"], {"tokens": 20}, NOON + 60)


def test_a_call_that_outlasts_its_window_pays_there_for_what_it_had_not_reserved() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    reservation = kept.reserve(["writer"], {"tokens": 10}, NOON)

    kept.settle(reservation, {"tokens": 95}, NOON + MINUTE)

    assert kept.list_states(["writer"], NOON + MINUTE)[0].settled == 85


def test_old_windows_are_neither_exported_nor_kept() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE), team=Quota("tokens", 100, HOUR))
    kept.reserve(["team", "writer"], {"tokens": 10}, NOON)

    assert [row.name for row in kept.export(NOON)] == ["team", "writer"]
    assert [row.name for row in kept.export(NOON + MINUTE)] == ["team"]
    kept.drop_old(NOON + MINUTE)
    assert [row.name for row in kept.export(NOON)] == ["team"]


def test_the_rows_of_a_reservation_are_those_it_changed() -> None:
    kept = quotas(team=Quota("tokens", 100, HOUR), writer=Quota("calls", 9, MINUTE), reader=Quota("calls", 9, MINUTE))
    kept.reserve(["team", "reader"], {"tokens": 5, "calls": 1}, NOON)

    reservation = kept.reserve(["team", "writer"], {"tokens": 10, "calls": 1}, NOON)
    kept.settle(reservation, {"tokens": 4, "calls": 1}, NOON + 1)

    assert kept.export(NOON + 1, reservation) == [
        Row("team", "tokens", HOUR, NOON, 4, 5),
        Row("writer", "calls", MINUTE, NOON, 1, 0),
    ]


def test_a_clock_set_back_a_little_renews_nothing_and_one_far_ahead_blocks_no_caller() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    kept.reserve(["writer"], {"tokens": 100}, NOON)

    with pytest.raises(QuotaExceeded):
        kept.reserve(["writer"], {"tokens": 1}, NOON - 1)
    assert kept.list_states(["writer"], NOON - 1)[0].renews_at == NOON + MINUTE
    kept.reserve(["writer"], {"tokens": 1}, NOON - HOUR)


def test_a_counter_that_is_gone_and_came_again_owes_nothing_to_old_reservations() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    old = kept.reserve(["writer"], {"tokens": 60}, NOON)
    kept.reserve(["writer"], {"tokens": 60}, NOON - HOUR)  # the clock was wrong
    kept.reserve(["writer"], {"tokens": 60}, NOON)

    kept.settle(old, {}, NOON)

    assert kept.list_states(["writer"], NOON)[0].reserved == 60


def test_a_reservation_is_settled_once_and_only_for_what_it_was_made() -> None:
    kept = quotas(writer=Quota("tokens", 100, MINUTE))
    reservation = kept.reserve(["writer"], {"tokens": 60}, NOON)

    with pytest.raises(ValueError, match="not in the reservation: money"):
        kept.settle(reservation, {"tokens": 1, "money": 1}, NOON)
    kept.settle(reservation, {"tokens": 1}, NOON)
    with pytest.raises(KeyError):
        kept.settle(reservation, {"tokens": 1}, NOON)
    with pytest.raises(ValueError, match="is negative"):
        kept.reserve(["writer"], {"tokens": -1}, NOON)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 150))
def test_a_check_refuses_what_would_not_fit_even_if_all_that_is_reserved_came_back(
    used: int, reserved: int, wanted: int
) -> None:
    kept = quotas(team=Quota("tokens", 200, MINUTE), writer=Quota("tokens", 250, MINUTE))
    kept.settle(kept.reserve(["team", "writer"], {"tokens": used}, NOON), {"tokens": used}, NOON)
    reservation = kept.reserve(["team", "writer"], {"tokens": reserved}, NOON)

    try:
        kept.check(["team", "writer"], {"tokens": wanted}, NOON)
        fits = True
    except QuotaExceeded as refusal:
        fits = False
        assert refusal.details["name"] == "team"

    kept.settle(reservation, {}, NOON)
    if fits:
        kept.reserve(["team", "writer"], {"tokens": wanted}, NOON)
    else:
        with pytest.raises(QuotaExceeded):
            kept.reserve(["team", "writer"], {"tokens": wanted}, NOON)


def test_a_limit_that_makes_no_sense_is_refused() -> None:
    for per in (0.0, 0.5, 90.5, -60.0, math.inf, math.nan):
        with pytest.raises(ValueError):
            Quota("tokens", 1, per)
    with pytest.raises(ValueError):
        Quota("tokens", -1, MINUTE)
    with pytest.raises(ValueError, match="two limits"):
        Quotas().limit("writer", [Quota("tokens", 1, MINUTE), Quota("tokens", 2, MINUTE)])


@given(st.integers(1, 10**7), st.floats(0, 4e9))
def test_a_window_ends_exactly_where_the_next_begins(per: int, now: float) -> None:
    window = window_index(float(per), now)

    assert window * float(per) <= now < (window + 1) * float(per)
    assert window_index(float(per), (window + 1) * float(per)) == window + 1
