"""The publisher: delivers events to the event log and to their subscribers."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from agentos.kernel.internal_errors import internal

from .events import CustomEvent, Event, MessageReceived, StateChanged, Subscriber, SyscallBlocked, discard

FREQUENT: Final = frozenset({MessageReceived, StateChanged, SyscallBlocked, CustomEvent})
"""Events that callers can cause thousands of times per second. Only the event log gets them: it is fast enough."""


@define(eq=False)
class Events:
    """Delivers each event to the event ``log``, then to each subscriber, in the order of publication.

    Events of the types in :data:`FREQUENT` go to the log alone.

    A subscriber is a function that must not wait. One that works later needs a bounded queue of its own, and decides
    what happens when it is full.
    """

    subscribers: Sequence[Subscriber] = ()
    log: Subscriber = discard
    _pending: deque[Event] = field(factory=deque)  # the first one is being delivered

    def publish(self, event: Event) -> None:
        """Call all subscribers. Never waits and never raises: a subscriber's exception is logged as an internal error.

        An event that a subscriber publishes is delivered after the present one, so all subscribers see the same order.
        """
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        while self._pending:
            event = self._pending[0]
            for subscriber in (self.log,) if type(event) in FREQUENT else (self.log, *self.subscribers):
                try:
                    subscriber(event)
                except Exception as bug:
                    internal(bug, f"a subscriber of {type(event).__name__}")
            self._pending.popleft()
