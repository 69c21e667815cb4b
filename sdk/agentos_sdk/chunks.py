"""Streamed replies for the blocking client: CHUNK frames, then the reply itself."""

from __future__ import annotations

import json

from .blocking import checked, dial, receive
from .errors import ConnectionFailed
from .frames import frame
from .opcodes import Op

TYPE_CHECKING = False  # as typing has it, which nobody needs at run time
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import Any

    Reply = dict[str, Any]


def streamed(
    path: str, op: int, fields: Mapping[str, object], said: Sequence[bytes] = ()
) -> Generator[tuple[int, Reply]]:
    """A call whose reply is streamed, over a connection of its own: the opcode and the body of each frame.

    ``said`` are the HELLOs that it begins with. The last one is the reply itself, or the exception that it stands for.
    To close this withdraws the call.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    with dial(path, said) as sock:
        try:
            sock.sendall(frame(0, Op.HELLO, b'{"protocol":2}'))
            checked(receive(sock)[2])
            sock.sendall(frame(1, op, json.dumps(given).encode()))
            while (got := receive(sock))[1] == Op.CHUNK:
                yield got[1], json.loads(got[2])
            yield got[1], checked(got[2])
        except (OSError, ValueError) as error:
            raise ConnectionFailed(f"the connection to the kernel at {path} broke: {error}") from None


class Outputs:
    """What a command writes, as it comes; when it has ended, ``executed`` is the whole reply."""

    def __init__(self, frames: Generator[tuple[int, Reply]]) -> None:
        self.executed: Reply | None = None
        self._frames = frames

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Outputs:
        return self

    def __next__(self) -> Reply:
        for op, body in self._frames:
            if op == Op.CHUNK:
                return body
            self.executed = body
        raise StopIteration

    def close(self) -> None:
        """Withdraw the command, if it hasn't ended yet."""
        self._frames.close()


class Deltas:
    """An answer of the model's in pieces, as they come; when it is complete, ``thought`` is the whole reply."""

    def __init__(self, frames: Generator[tuple[int, Reply]]) -> None:
        self.thought: Reply | None = None
        self._frames = frames

    def __enter__(self) -> Deltas:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Deltas:
        return self

    def __next__(self) -> str:
        for op, body in self._frames:
            if op == Op.CHUNK:
                return str(body["delta"])
            self.thought = body
        raise StopIteration

    def close(self) -> None:
        """Withdraw the question, if it isn't answered yet."""
        self._frames.close()
