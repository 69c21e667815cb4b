"""The publisher: delivers events to the event log and to their subscribers."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from attrs import define, field

from agentos.kernel.internal_errors import internal

from .events import CustomEvent, Event, MessageReceived, StateChanged, Subscriber, SyscallBlocked, discard

FREQUENT: Final = frozenset({MessageReceived, StateChanged, SyscallBlocked, CustomEvent})
"""Events that callers can cause thousands of times per second. Only the event log gets them: it is fast enough."""

E = TypeVar("E")


@define(eq=False)
class Events:
    """Delivers each event to the event ``log``, then to each subscriber of its type, in the order of publication.

    Events of the types in :data:`FREQUENT` go to the log alone.

    A subscriber is a function that must not wait. One that works later needs a bounded queue of its own, and decides
    what happens when it is full.
    """

    log: Subscriber = discard
    _subscribers: list[tuple[tuple[type, ...], Callable[[Any], None]]] = field(factory=list)  # each with its types
    _by_type: dict[type, Sequence[Callable[[Any], None]]] = field(factory=dict)  # what gets the events of a type
    _pending: deque[Event] = field(factory=deque)  # the first one is being delivered

    def subscribe(self, subscriber: Callable[[E], None], *types: type[E]) -> None:
        """Call ``subscriber`` with the events of these types, after those that subscribed before; of all without."""
        self._subscribers.append((types, subscriber))
        self._by_type.clear()

    def publish(self, event: Event) -> None:
        """Call the subscribers. Never waits and never raises: a subscriber's exception is logged as an internal error.

        An event that a subscriber publishes is delivered after the present one, so all subscribers see the same order.
        """
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        while self._pending:
            event, kind = self._pending[0], type(self._pending[0])
            if kind not in self._by_type:
                found = [one for types, one in self._subscribers if not types or issubclass(kind, types)]
                self._by_type[kind] = () if kind in FREQUENT else found
            for subscriber in (self.log, *self._by_type[kind]):
                try:
                    subscriber(event)
                except Exception as bug:
                    internal(bug, f"a subscriber of {kind.__name__}")
            self._pending.popleft()
