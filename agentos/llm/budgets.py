"""Budgets for LLM requests: tokens, calls and money are reserved before a request and settled after its answer.

The provider is asked for all that a request may generate, and usually answers with a fraction of it. So what is
reserved is the likely length of the answer, at least 1,024 tokens and at most half of what is left. Such a request
may overrun its reservation. An agent has one of these at a time: its others reserve all that they may generate, or
wait.

A reservation is on disk before the request is sent, so killing the kernel can't free budget. What a killed kernel had
reserved stays reserved until its window ends. The write of the actual usage is queued and not waited for: if it is
lost, the larger reservation still stands in the database. Usage beyond a reservation is written before the answer is
given (:meth:`Budgets.flush`).

Bound: usage of one resource in a window exceeds its quota at most by one answer of each agent, and by errors in the
estimate of input and failed attempts that cost tokens. It is told (``BudgetExhausted``). docs/decisions/0017.
"""

import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Final

from attrs import evolve, field, frozen
from msgspec import Struct

from agentos.database import Database, DatabaseError
from agentos.services.events import BudgetExhausted, Publish, discard
from agentos.services.quotas import MONEY_UNITS, OF_MODEL, Amounts, BudgetState, Quota, Quotas, Reservation, Row
from agentos_sdk.errors import BadRequest, NotFound, QuotaExceeded, Unavailable
from agentos_sdk.values import Usage

from .answers.answer_lengths import LEAST, AnswerLengths
from .models.prices import cache_prices, find_price
from .settings import Price, QueuePath, queue_names

log = logging.getLogger(__name__)

TABLES: Final = (
    """CREATE TABLE quotas (
        name TEXT, what TEXT, per REAL, start REAL NOT NULL, settled INTEGER NOT NULL, reserved INTEGER NOT NULL,
        PRIMARY KEY (name, what, per)
    ) WITHOUT ROWID""",
)
TIDY_INTERVAL = 3600.0  # seconds between two removals of windows that have ended


class Rate(Struct, frozen=True):
    """A price as exact fractions: billionths of a unit of currency per token."""

    input: Fraction
    output: Fraction
    cache_read: Fraction
    cache_creation: Fraction
    cache_creation_1h: Fraction

    @classmethod
    def of(cls, model: str, price: Price) -> "Rate":
        prices = (Fraction(str(price.input)), Fraction(str(price.output)), *cache_prices(model, price))
        return cls(*(each * Fraction(MONEY_UNITS, 10**6) for each in prices))

    def cost(self, usage: Usage) -> int:
        return math.ceil(self._exact(usage))

    def _exact(self, usage: Usage) -> Fraction:
        fresh = usage.input - usage.cache_read - usage.cache_creation
        cost = fresh * self.input + usage.cache_read * self.cache_read + usage.generated * self.output
        short = usage.cache_creation - usage.cache_creation_1h
        return cost + short * self.cache_creation + usage.cache_creation_1h * self.cache_creation_1h

    def affords(self, left: int, expected: Usage) -> float:
        """How many tokens may be generated for what is ``left``; negative if that doesn't even pay for the input."""
        rest = left - self._exact(expected)
        return math.floor(rest / self.output) if self.output else math.inf if rest >= 0 else -1


@frozen
class Grant:
    """Permission to send a request that generates at most ``max_tokens`` (``None``: the provider's own limit).

    ``may_overrun``: it may generate more than is reserved.
    """

    max_tokens: int | None
    reservation: Reservation | None = field(default=None, repr=False)
    rate: Rate | None = field(default=None, repr=False)
    queue_path: QueuePath = field(default=(), repr=False)
    model: str = ""
    may_overrun: bool = False


class Budgets:
    """Budgets of all agents, on ``quotas`` that are kept in ``database`` across restarts.

    A request that names no limit of its own generates at most ``max_tokens`` where a budget applies. Times are
    arguments, in seconds since the epoch.
    """

    def __init__(
        self,
        quotas: Quotas,
        prices: Mapping[str, Price],
        database: Database,
        max_tokens: int,
        publish: Publish = discard,
    ) -> None:
        self._quotas, self._database, self._max_tokens = quotas, database, max_tokens
        self._rates = {model: Rate.of(model, price) for model, price in prices.items()}
        self._limits: dict[str, tuple[Quota, ...]] = {}
        self._refusing: dict[tuple[str, str, float], float] = {}  # name, what, per: when a budget that refused renews
        self._lengths = AnswerLengths()
        self._may_overrun: set[str] = set()  # agents with a request under way that may overrun its reservation
        self._tidied = 0.0
        self._publish = publish

    @classmethod
    async def load(
        cls,
        prices: Mapping[str, Price],
        database: Database,
        max_tokens: int,
        now: float,
        publish: Publish = discard,
    ) -> "Budgets":
        """Restore the counters of the previous kernel; raises :class:`agentos.database.DatabaseError`."""
        rows = await database.write(partial(_load, now))
        return cls(Quotas(rows), prices, database, max_tokens, publish)

    def cost(self, model: str, usage: Usage) -> float | None:
        """What this use of a model costs, in the currency of its price; ``None`` if it has no price."""
        cost = self.cost_units(model, usage)
        return None if cost is None else cost / MONEY_UNITS

    def cost_units(self, model: str, usage: Usage) -> int | None:
        """The same in billionths."""
        rate = find_price(self._rates, model)
        return rate.cost(usage) if rate is not None else None

    def check(
        self,
        queue_path: QueuePath,
        model: str,
        input_tokens: int,
        max_tokens: int | None,
        now: float,
        calls: int = 1,
        *,
        for_hour: bool = False,
    ) -> None:
        """Refuse a request that can't be granted in this window, even if all reservations were returned unused.

        ``for_hour``: the vendor is asked to keep some of the input in its cache for an hour, which may cost more.
        Raises ``QuotaExceeded``, which names the quota and the time of its renewal, and ``BadRequest`` if money is
        limited and the model has no price.
        """
        if states := self.budget_states(queue_path, now):
            rate = self._rate(model, states)
            least = _expect(input_tokens, min(LEAST, self._wanted(max_tokens)), rate, for_hour)
            try:
                self._quotas.check(queue_names(queue_path), _amounts(least, calls, rate), now)
            except QuotaExceeded as error:
                self._note_refusal(error, states)
                if error.details["renews_at"] is None and least.output == LEAST and error.details["what"] != "calls":
                    raise QuotaExceeded(f"{error}, with {LEAST} tokens for the answer", **error.details) from None
                raise

    def _note_refusal(self, error: QuotaExceeded, states: Iterable[BudgetState]) -> None:
        """Publish that a budget refuses questions, once in its window; not if the question never fits."""
        if error.details["renews_at"] is None:
            return
        exceeded = tuple(error.details[name] for name in ("name", "what", "per"))
        [state] = [each for each in states if _key(each) == exceeded]
        self._note_used_up(state)

    def _note_used_up(self, state: BudgetState) -> None:
        if self._refusing.get(_key(state)) == state.renews_at:
            return
        self._refusing[_key(state)] = state.renews_at
        quota, unit = state.quota, MONEY_UNITS if state.quota.what == "money" else 1
        self._publish(
            BudgetExhausted(state.name, quota.what, state.settled / unit, quota.most / unit, quota.per, state.renews_at)
        )

    def refusing(self, queue_path: QueuePath, now: float) -> Sequence[BudgetState]:
        """The budgets of this queue path that were used up in their present window."""
        if not self._refusing:
            return ()
        return [
            each for each in self.budget_states(queue_path, now) if self._refusing.get(_key(each)) == each.renews_at
        ]

    async def reset(self, name: str, now: float) -> None:
        """Set to 0 what is used of the budgets of ``name``. Raises ``NotFound`` and ``Unavailable``."""
        rows = self._quotas.reset(name, now)
        if not rows and not self._quotas.has_limits(name):
            raise NotFound(f"no budget belongs to {name!r}")
        self._refusing = {key: renews_at for key, renews_at in self._refusing.items() if key[0] != name}
        try:
            await self._database.write(partial(_save, rows))
        except DatabaseError as error:
            log.error("a budget was reset, and that can't be saved: %s", error)
            raise Unavailable("the reset can't be saved, and holds until the kernel ends: see its log") from None

    async def reserve(
        self,
        queue_path: QueuePath,
        model: str,
        input_tokens: int,
        max_tokens: int | None,
        now: float,
        calls: int = 1,
        *,
        for_hour: bool = False,
    ) -> Grant:
        """Reserve what the request will likely use; on disk when this returns.

        Raises what :meth:`check` does, also if the reservations of other requests are in the way, and ``Unavailable``
        if the database can't be written.
        """
        states = self.budget_states(queue_path, now)
        if not states:
            return Grant(max_tokens)
        rate, agent, wanted = self._rate(model, states), queue_path[-1].name, self._wanted(max_tokens)
        least = _expect(input_tokens, 0, rate, for_hour)
        room = min(_room(each, least, rate) for each in states)
        expected = self._expected(agent, model, wanted, room)
        amounts = _amounts(evolve(least, output=expected), calls, rate)
        reservation = self._quotas.reserve(queue_names(queue_path), amounts, now)
        may_overrun = expected < wanted and room < math.inf
        if may_overrun:
            self._may_overrun.add(agent)
        written = False
        try:
            await self._database.write(partial(_save, self._quotas.export(now, reservation)))
            written = True
        except DatabaseError as error:
            log.error("model requests with a budget are refused, their reservation can't be saved: %s", error)
            raise Unavailable("budgets can't be saved: see the kernel's log") from None
        finally:
            if not written:
                if may_overrun:
                    self._may_overrun.remove(agent)
                self._quotas.settle(reservation, {}, now)
                self._note(reservation, now)
        limit = max_tokens if room == math.inf else wanted
        return Grant(limit, reservation, rate, queue_path, model, may_overrun)

    def _wanted(self, max_tokens: int | None) -> int:
        return self._max_tokens if max_tokens is None else max_tokens

    def _expected(self, agent: str, model: str, wanted: int, room: float) -> int:
        """The tokens to reserve for an answer of at most ``wanted``, of ``room`` that are left.

        More than ``room`` if the request has to wait: then no reservation can be made.
        """
        half = max(LEAST, math.floor(room / 2)) if room < math.inf else wanted
        if agent not in self._may_overrun:
            return min(wanted, half, self._lengths.likely(agent, model))
        return wanted if wanted <= half else max(wanted, math.floor(room) + 1)

    def charge(self, queue_path: QueuePath, amounts: Amounts, now: float, used: bool) -> None:
        """Count the use of something else than the model; raises ``QuotaExceeded`` if there is no room for it.

        It counts even then if it was ``used`` already. The write is queued: a kernel that is killed may lose what was
        charged in its last moments.
        """
        states = [each for each in self.budget_states(queue_path, now) if each.quota.what in amounts]
        if not states:
            return
        try:
            needed = amounts if used else {what: max(1, amount) for what, amount in amounts.items()}
            self._quotas.check(queue_names(queue_path), needed, now)
        except QuotaExceeded as error:
            self._note_refusal(error, states)
            if not used:
                raise
            refusal: QuotaExceeded | None = error
        else:
            refusal = None
        reservation = self._quotas.reserve(queue_names(queue_path), dict.fromkeys(amounts, 0), now)
        self._quotas.settle(reservation, amounts, now)
        self._note(reservation, now)
        if abs(now - self._tidied) >= TIDY_INTERVAL:
            self._tidy(now)
        if refusal is not None:
            raise refusal

    def settle(self, grant: Grant, usage: Usage, calls: int, now: float) -> None:
        """Replace a reservation by the actual usage of all ``calls`` to the provider; once per grant (``KeyError``)."""
        if grant.reservation is None:
            return
        self._quotas.settle(grant.reservation, _amounts(usage, calls, grant.rate), now)
        self._note(grant.reservation, now)
        agent = grant.queue_path[-1].name
        self._lengths.learn(agent, grant.model, usage.generated)
        if grant.may_overrun:
            self._may_overrun.remove(agent)
        for state in self.budget_states(grant.queue_path, now):
            if state.quota.what in OF_MODEL and state.settled > state.quota.most:
                self._note_used_up(state)
        if abs(now - self._tidied) >= TIDY_INTERVAL:
            self._tidy(now)

    async def flush(self) -> None:
        """Wait until all usage that was settled is on disk; a failure is in the kernel's log."""
        with contextlib.suppress(DatabaseError):
            await self._database.write(_nothing)

    def budget_states(self, queue_path: QueuePath, now: float) -> list[BudgetState]:
        """Every quota that applies to this queue path, the outermost first, with its current counters."""
        for account in queue_path:
            if self._limits.get(account.name, ()) != (budget := tuple(account.share.budget)):
                self._quotas.limit(account.name, budget)
                self._limits[account.name] = budget
        return self._quotas.list_states(queue_names(queue_path), now)

    def _rate(self, model: str, states: Iterable[BudgetState]) -> Rate | None:
        rate = find_price(self._rates, model)
        limited = next((each.name for each in states if each.quota.what == "money"), None)
        if rate is None and limited is not None:
            raise BadRequest(f"model: {model!r} has no price, and the money of {limited!r} is limited")
        return rate

    def _note(self, reservation: Reservation, now: float) -> None:
        """Queue a write of the current counters. Writes run in order, so the last one is right."""
        if rows := self._quotas.export(now, reservation):
            self._submit(partial(_save, rows))

    def _tidy(self, now: float) -> None:
        """Drop counters and limits of names that have no open window left."""
        self._tidied = now
        self._quotas.drop_old(now)
        self._refusing = {key: renews_at for key, renews_at in self._refusing.items() if renews_at > now}
        counted = {row.name for row in self._quotas.export(now)}
        for name in self._limits.keys() - counted:
            self._quotas.limit(name, ())
            del self._limits[name]
        self._submit(partial(_drop, now))

    def _submit(self, work: Callable[[sqlite3.Connection], None]) -> None:
        what = "what budgets have used"
        try:
            self._database.submit(work, what)
        except DatabaseError as error:
            log.error("%s was not written: %s", what, error)


def _key(state: BudgetState) -> tuple[str, str, float]:
    return state.name, state.quota.what, state.quota.per


def _expect(tokens_in: int, generated: int, rate: Rate | None, for_hour: bool) -> Usage:
    """What is reserved: with all input written to the vendor's cache, if that is dearer."""
    if rate is None or max(rate.cache_creation, rate.cache_creation_1h) <= rate.input:
        return Usage(tokens_in, generated)
    return Usage(tokens_in, generated, 0, 0, tokens_in, tokens_in if for_hour else 0)


def _amounts(usage: Usage, calls: int, rate: Rate | None) -> dict[str, int]:
    amounts = {"tokens": usage.total, "calls": calls}
    if rate is not None:
        amounts["money"] = rate.cost(usage)
    return amounts


def _room(state: BudgetState, expected: Usage, rate: Rate | None) -> float:
    """How many tokens this quota allows to be generated."""
    if state.quota.what == "tokens":
        return state.left - expected.input
    if state.quota.what == "money" and rate is not None:
        return rate.affords(state.left, expected)
    return math.inf


def _load(now: float, connection: sqlite3.Connection) -> list[Row]:
    _drop(now, connection)
    return [Row(*row) for row in connection.execute("SELECT name, what, per, start, settled, reserved FROM quotas")]


def _save(rows: Sequence[Row], connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?, ?, ?, ?)", rows)


def _nothing(connection: sqlite3.Connection) -> None:
    """Its outcome comes after that of all writes that were queued before."""


def _drop(now: float, connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM quotas WHERE start + per <= ?", (now,))
