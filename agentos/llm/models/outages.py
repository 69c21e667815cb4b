"""Outages of models: a model that fails repeatedly is passed over by aliases for a while, then probed by one question.

No I/O: times are arguments, in seconds on any monotonic clock.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field

from agentos.llm.providers.provider import Denied, Failing, ProviderError, Unforeseen

FAILURES = 3  # within …
WINDOW = 30.0  # … so many seconds take a model out for …
DURATION = 30.0  # … so many seconds
MAX_KEPT = 1024  # models and accounts with kept failures


@define(eq=False)
class Outage:
    """Failures of one model."""

    _times: deque[float] = field(factory=lambda: deque(maxlen=FAILURES))
    _until: float | None = None  # None: the model is not out
    _probing: bool = False  # whether a question that began after that is under way

    def is_out(self, now: float) -> bool:
        return self._until is not None and (self._probing or now < self._until)

    def begin(self, now: float) -> None:
        self._probing = self._until is not None and now >= self._until

    def fail(self, now: float) -> None:
        self._times.append(now)
        if self._until is not None or (len(self._times) == FAILURES and now - self._times[0] <= WINDOW):
            self._until = now + DURATION
        self._probing = False

    def succeed(self) -> None:
        """Record an answer, or a refusal that shows that the model is reachable."""
        if self._until is not None:
            self._times.clear()
        self._until, self._probing = None, False

    def withdraw(self) -> None:
        """Record that the attempt was cancelled."""
        self._probing = False


@define(eq=False)
class Outages:
    """The outages of all models. One that a single account has met holds for that account alone.

    So the questions of one account, which may be what makes a model fail, take no model from others.
    """

    _kept: OrderedDict[tuple[str, str | None], Outage] = field(factory=OrderedDict)  # by model and account; None: any
    _failed_last: dict[str, str] = field(factory=dict)  # the account, by model

    def is_out(self, model: str, account: str, now: float) -> bool:
        found = (self._kept.get((model, one)) for one in (account, None))
        return any(outage is not None and outage.is_out(now) for outage in found)

    @contextmanager
    def attempt(self, model: str, account: str, clock: Callable[[], float]) -> Iterator[None]:
        """Record how an attempt ends: the exceptions that leave the block say it."""
        met = [outage for one in (account, None) if (outage := self._kept.get((model, one))) is not None]
        for outage in met:
            outage.begin(clock())
        try:
            yield
        except ProviderError as error:
            if isinstance(error, Failing | Denied) and not isinstance(error, Unforeseen):
                self._fail(model, account, clock())
            else:
                for outage in met:
                    outage.succeed()
            raise
        except BaseException:
            for outage in met:
                outage.withdraw()
            raise
        for outage in met:
            outage.succeed()

    def _fail(self, model: str, account: str, now: float) -> None:
        self._find(model, account).fail(now)
        shared = self._find(model, None)
        if self._failed_last.get(model) != account or shared.is_out(now) or shared._probing:
            shared.fail(now)
        else:
            shared.withdraw()
        self._failed_last[model] = account

    def _find(self, model: str, account: str | None) -> Outage:
        outage = self._kept.get((model, account)) or Outage()
        self._kept[model, account] = outage
        self._kept.move_to_end((model, account))
        if len(self._kept) > MAX_KEPT:
            (dropped, _), _ = self._kept.popitem(last=False)
            self._failed_last.pop(dropped, None)
        return outage
