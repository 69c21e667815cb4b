"""How fast an MCP server's messages are read: one that sends more waits, and nothing else does."""

from typing import Final

import trio
from attrs import define, field

BURST: Final = 256  # messages
PER_SECOND: Final = 256  # messages
MESSAGE_BYTES: Final = 8 << 10  # a longer one counts as several


@define(eq=False)
class Pace:
    """A token bucket for the messages of one server."""

    _tokens: float = BURST
    _at: float = field(factory=trio.current_time)

    async def wait(self, size: int) -> None:
        """Wait until a message of ``size`` bytes may be handled."""
        now = trio.current_time()
        self._tokens = min(BURST, self._tokens + (now - self._at) * PER_SECOND) - 1 - size / MESSAGE_BYTES
        self._at = now
        if self._tokens < 0:
            await trio.sleep(-self._tokens / PER_SECOND)
