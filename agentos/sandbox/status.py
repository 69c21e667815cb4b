"""Exit status of a program."""

import signal

from msgspec import Struct


class Status(Struct, frozen=True):
    """Exit code or signal; exactly one of ``code`` and ``signal`` is set."""

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            named = self.signal in signal.Signals._value2member_map_  # real-time signals have no name
            return f"killed by {signal.Signals(self.signal).name if named else f'signal {self.signal}'}"
        return f"exit status {self.code}"
