"""What a person types into a program's terminal, and the terminal's size: CHUNK frames, written to our end of it."""

import os
import termios
from collections.abc import Awaitable, Callable

import trio
from msgspec import Struct

from agentos.kernel.wire.request_body import read_chunk
from agentos.syscalls.json_text import decode_base64
from agentos_sdk.calls.host import Input

END_OF_INPUT = b"\x04"  # Ctrl-D, as terminals have it unless a program changes that
FULL_PAUSE = 0.02  # seconds between two tries: of a terminal that takes no more, Linux says that it can be written to


class Typist(Struct, frozen=True):
    """Writes frames to a terminal as they come; ``take`` returns the next one's body."""

    take: Callable[[], Awaitable[bytes]]

    async def type_into(self, terminal: int) -> None:
        """Pass on what comes until this is cancelled. Raises ``BadRequest`` for a frame that is no :class:`Input`."""
        while True:
            frame = read_chunk(Input, await self.take())
            if frame.resize is not None:
                termios.tcsetwinsize(terminal, (frame.resize[0], frame.resize[1]))
            await write_all(terminal, decode_base64(frame.stdin, "CHUNK: stdin") + (END_OF_INPUT if frame.eof else b""))


async def write_all(terminal: int, data: bytes) -> None:
    """Write to a terminal that doesn't block. What no process has open any more takes nothing."""
    while data:
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            await trio.sleep(FULL_PAUSE)
        except OSError:
            return
