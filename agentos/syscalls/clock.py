"""Handlers of NOW, SLEEP and RANDOM: the host's clock and random bytes."""

# What a program learns of time and chance by these calls, another table can answer in their place, such as that of a
# recording. A sleep is a task, and takes one of its caller's places for calls in flight. The callers of a family
# together have as many places for sleeps as one caller has for calls, so a family can't multiply them by spawning.

import os
import time
from binascii import b2a_base64
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
from attrs import field, frozen

from agentos.kernel.call import Call
from agentos.kernel.caller import MAX_CALLS, Caller
from agentos.kernel.syscall import Syscall
from agentos_sdk.calls.host import MAX_SLEEP, Now, Random, RandomData, Sleep, Slept, Time
from agentos_sdk.errors import BadRequest, QuotaExceeded
from agentos_sdk.opcodes import Op

RATE: Final = 1.0  # seconds of the kernel's time in one of the host's
LONGEST_LOOK: Final = 60.0  # seconds after which a sleep until an instant looks at a clock that may have been set


@frozen(eq=False)
class Clock:
    """Answers them. ``now`` is the time in seconds since the epoch, ``entropy`` gives that many random bytes."""

    now: Callable[[], float] = time.time
    entropy: Callable[[int], bytes] = os.urandom
    _asleep: Counter[str] = field(factory=Counter)  # sleeps in flight, by family

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.NOW, Now, handler=self.tell_time),
            Syscall(Op.SLEEP, Sleep, handler=self.sleep),
            Syscall(Op.RANDOM, Random, handler=self.give_random),
        )

    def tell_time(self, caller: Caller, request: Now) -> Time:
        return Time(now=self.now(), rate=RATE)

    def give_random(self, caller: Caller, request: Random) -> RandomData:
        return RandomData(data=b2a_base64(self.entropy(request.bytes), newline=False).decode())

    async def sleep(self, call: Call, request: Sleep) -> Slept:
        seconds, until = request.seconds, request.until
        if (seconds is None) == (until is None):
            raise BadRequest("seconds: expected exactly one of seconds and until")
        if until is not None and until - self.now() > MAX_SLEEP:
            raise BadRequest(f"until: expected an instant within {MAX_SLEEP:.0f} seconds from now, got {until}")
        with self._place(call.caller.family):
            if until is None:
                await trio.sleep(seconds or 0.0)
            else:
                await self._sleep_until(until)
        return Slept(now=self.now())

    async def _sleep_until(self, instant: float) -> None:
        left = instant - self.now()
        while left > 0:
            await trio.sleep(min(left, LONGEST_LOOK))
            left = instant - self.now()

    @contextmanager
    def _place(self, family: str) -> Iterator[None]:
        """A place among the sleeps of a family; the operator, which has none, is bound by its calls alone."""
        if family and self._asleep[family] >= MAX_CALLS:
            raise QuotaExceeded(f"{MAX_CALLS} calls of the caller and its relatives sleep already: wait for one")
        self._asleep[family] += 1
        try:
            yield
        finally:
            self._asleep[family] -= 1
            if not self._asleep[family]:
                del self._asleep[family]
