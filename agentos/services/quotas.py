"""Quotas per name and time window, for an agent with all its descendants: reserved first, settled afterwards.

A quota limits one resource (tokens, calls, money, or another count) per window. Windows are fixed and aligned to the
epoch: one of 3600 s begins on the hour. A reservation needs room in the quotas of the agent and of all its ancestors,
or it takes none. Counters belong to names: a restarted agent continues with its old counters.

Amounts are integers, so sums are exact: money is counted in billionths. Times are arguments, in seconds since the
epoch.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from attrs import define, field, frozen
from attrs.validators import ge
from msgspec import Struct

from agentos_sdk.encoding.quantities import duration
from agentos_sdk.errors import QuotaExceeded

OF_MODEL = frozenset({"tokens", "calls", "money"})  # what budgets of the model limit
MONEY_UNITS = 10**9  # money is counted in billionths: this many are 1.0 of any currency

Amounts: TypeAlias = Mapping[str, int]


def _check_whole_seconds(_instance: object, _attribute: object, value: float) -> None:
    if value < 1 or value % 1:
        raise ValueError(f"a window is a whole number of seconds, not {value}")  # otherwise its end wouldn't be exact


@frozen
class Quota:
    """At most ``most`` of ``what`` in each window of ``per`` seconds."""

    what: str
    most: int = field(validator=ge(0))
    per: float = field(validator=_check_whole_seconds)


def make_quotas(
    per: float, tokens: int | None = None, calls: int | None = None, money: float | None = None, **others: int | None
) -> tuple[Quota, ...]:
    """Quotas for each window of ``per`` seconds; ``money`` is in the currency of the model's prices."""
    amounts = {"tokens": tokens, "calls": calls, "money": None if money is None else round(money * MONEY_UNITS)}
    amounts |= others
    return tuple(Quota(what, most, per) for what, most in amounts.items() if most is not None)


def merge_quotas(*given: Iterable[Quota]) -> tuple[Quota, ...]:
    """All of these together; if two limit the same resource and window, the smaller one."""
    found: dict[tuple[str, float], Quota] = {}
    for quota in itertools.chain(*given):
        other = found.get((quota.what, quota.per))
        if other is None or quota.most < other.most:
            found[quota.what, quota.per] = quota
    return tuple(found.values())


def limits_model(quotas: Iterable[Quota]) -> bool:
    """Whether any of these limits the use of the model."""
    return any(quota.what in OF_MODEL for quota in quotas)


class Row(NamedTuple):
    """A counter as plain values; ``start`` of its window and its length ``per`` in seconds."""

    name: str
    what: str
    per: float
    start: float
    settled: int
    reserved: int


class BudgetState(Struct, frozen=True):
    """How much of a quota is used in the current window, and when the next one begins (seconds since the epoch)."""

    name: str
    quota: Quota
    settled: int
    reserved: int
    renews_at: float

    @property
    def left(self) -> int:
        return max(0, self.quota.most - self.settled - self.reserved)


@define(eq=False)
class _Counter:
    window: int  # index of the window: how many windows of this length ended before it since the epoch
    settled: int = 0
    reserved: int = 0


class _Key(NamedTuple):
    name: str
    what: str
    per: float


class _Hold(Struct, frozen=True):
    """What a reservation holds of one counter, that of the window in which it was made."""

    key: _Key
    counter: _Counter
    amount: int


class Reservation(Struct, frozen=True, eq=False):
    """Amounts that are held until :meth:`Quotas.settle`, of the resources in ``kinds``."""

    kinds: frozenset[str]
    holds: tuple[_Hold, ...]


def window_index(per: float, now: float) -> int:
    return int(now // per)


class Quotas:
    """All quotas and their counters."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        """``rows`` as :meth:`export` made them.

        Reservations of a kernel that was killed stay until their window ends: how much of them was used is unknown.
        """
        self._quotas: dict[str, tuple[Quota, ...]] = {}
        self._open: set[Reservation] = set()
        self._counters = {
            _Key(row.name, row.what, row.per): _Counter(window_index(row.per, row.start), row.settled, row.reserved)
            for row in rows
        }

    def limit(self, name: str, quotas: Collection[Quota]) -> None:
        """Replace the quotas of ``name``, which also limit its descendants.

        Counters stay: a limit that is removed and set again finds the earlier usage. Several windows for one resource
        are allowed (a minute and a day), two limits for the same window are not (``ValueError``).
        """
        if len({(quota.what, quota.per) for quota in quotas}) < len(quotas):
            raise ValueError(f"{name}: two limits for the same kind and window")
        self._quotas[name] = tuple(quotas)
        if not quotas:
            del self._quotas[name]

    def reserve(self, path: Sequence[str], amounts: Amounts, now: float) -> Reservation:
        """Reserve ``amounts`` for the agent at the end of ``path``, which begins with its outermost ancestor.

        Raises ``QuotaExceeded`` and changes nothing if a quota has no room: it names the quota, and has in its details
        ``renews_at``, seconds since the epoch; ``None`` if the amount is more than a whole window allows.
        """
        _check_amounts(amounts)
        affected = [state for state in self.list_states(path, now) if state.quota.what in amounts]
        exceeded = [state for state in affected if amounts[state.quota.what] > state.left]
        if exceeded:
            raise _quota_exceeded(exceeded, amounts, now)
        holds = []
        for state in affected:
            quota = state.quota
            key, amount = _Key(state.name, quota.what, quota.per), amounts[quota.what]
            counter = self._current_counter(key, now)
            counter.reserved += amount
            self._counters[key] = counter
            holds.append(_Hold(key, counter, amount))
        reservation = Reservation(frozenset(amounts), tuple(holds))
        self._open.add(reservation)
        return reservation

    def check(self, path: Sequence[str], amounts: Amounts, now: float) -> None:
        """Raise ``QuotaExceeded`` if :meth:`reserve` would even if all reservations were returned unused."""
        states = self.list_states(path, now)
        exceeded = [each for each in states if each.settled + amounts.get(each.quota.what, 0) > each.quota.most]
        if exceeded:
            raise _quota_exceeded(exceeded, amounts, now)

    def settle(self, reservation: Reservation, used: Amounts, now: float) -> None:
        """Replace a reservation by the actual usage; resources that aren't named weren't used.

        Only once (``KeyError``), and only for resources named in the reservation, even if no quota limited them
        (``ValueError``). The usage counts in the window of the reservation. Usage beyond the reservation counts too,
        even over the limit. If that window has ended, the excess counts in the current one: otherwise a long call would
        get it for free.
        """
        _check_amounts(used)
        if unknown := used.keys() - reservation.kinds:
            raise ValueError(f"not in the reservation: {', '.join(sorted(unknown))}")
        self._open.remove(reservation)
        for hold in reservation.holds:
            amount = used.get(hold.key.what, 0)
            counter = self._current_counter(hold.key, now)
            if counter is hold.counter:
                counter.reserved -= hold.amount
                counter.settled += amount
            elif amount > hold.amount:
                counter.settled += amount - hold.amount
            self._counters[hold.key] = counter

    def list_states(self, path: Sequence[str], now: float) -> list[BudgetState]:
        """Every quota that applies to the agent at the end of ``path``, the outermost first."""
        states = []
        for name in dict.fromkeys(path):
            for quota in self._quotas.get(name, ()):
                counter = self._current_counter(_Key(name, quota.what, quota.per), now)
                renews_at = (counter.window + 1) * quota.per
                states.append(BudgetState(name, quota, counter.settled, counter.reserved, renews_at))
        return states

    def export(self, now: float, reservation: Reservation | None = None) -> list[Row]:
        """Counters (of a reservation) for windows that haven't ended; those of ended windows may be deleted."""
        keys = self._counters.keys() if reservation is None else [hold.key for hold in reservation.holds]
        return [
            Row(*key, counter.window * key.per, counter.settled, counter.reserved)
            for key in keys
            if (counter := self._current_counter(key, now)) is self._counters.get(key)
        ]

    def reset(self, name: str, now: float) -> list[Row]:
        """Set to 0 what is settled in the current windows of ``name``; returns the changed counters.

        What open reservations hold stays reserved; what a killed kernel had reserved does not.
        """
        held: dict[_Key, int] = {}
        for hold in (hold for reservation in self._open for hold in reservation.holds):
            if hold.key.name == name and self._counters.get(hold.key) is hold.counter:
                held[hold.key] = held.get(hold.key, 0) + hold.amount
        rows = []
        for key in [key for key in self._counters if key.name == name]:
            counter = self._current_counter(key, now)
            if counter is self._counters[key]:
                counter.settled, counter.reserved = 0, held.get(key, 0)
                rows.append(Row(*key, counter.window * key.per, 0, counter.reserved))
        return rows

    def has_limits(self, name: str) -> bool:
        return name in self._quotas

    def drop_old(self, now: float) -> None:
        """Drop the counters of windows that have ended."""
        self._counters = {key: each for key, each in self._counters.items() if self._current_counter(key, now) is each}

    def _current_counter(self, key: _Key, now: float) -> _Counter:
        """The counter of the current window: a new one, not stored yet, if there is none or its window has ended.

        A clock that was set back by up to one window renews nothing. A clock that was far ahead doesn't block a name
        for years.
        """
        window = window_index(key.per, now)
        counter = self._counters.get(key)
        return counter if counter and counter.window - 1 <= window <= counter.window else _Counter(window)


def _check_amounts(amounts: Amounts) -> None:
    for what, amount in amounts.items():
        if amount < 0:
            raise ValueError(f"{what}: {amount} is negative")


def _quota_exceeded(exceeded: Sequence[BudgetState], amounts: Amounts, now: float) -> QuotaExceeded:
    """The error for the quota that renews last: until then a retry would be refused again."""
    never = [state for state in exceeded if amounts[state.quota.what] > state.quota.most]
    worst = max(never or exceeded, key=lambda state: state.renews_at)
    quota, renews_at = worst.quota, None if never else worst.renews_at
    asked, most, settled, reserved = (
        f"{amount / MONEY_UNITS:.6g}" if quota.what == "money" else str(amount)
        for amount in (amounts[quota.what], quota.most, worst.settled, worst.reserved)
    )
    text = f"{quota.what}: the quota of {worst.name!r} is {most} per {duration(quota.per)}"
    if renews_at is None:
        text += f", and this needs {asked} at least: it never fits"
    else:
        text += f", of which {settled} used and {reserved} reserved; this needs {asked} at least: "
        text += f"it renews in {duration(math.ceil(renews_at - now))}"
    return QuotaExceeded(text, name=worst.name, what=quota.what, most=quota.most, per=quota.per, renews_at=renews_at)
