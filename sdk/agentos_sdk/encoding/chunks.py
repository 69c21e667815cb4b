"""Streamed replies for the blocking client: CHUNK frames, then the reply itself."""

from __future__ import annotations

from binascii import a2b_base64

from agentos_sdk.blocking import check_reply, encode, open_connection, parse_reply, receive
from agentos_sdk.errors import ConnectionFailed
from agentos_sdk.frames import frame
from agentos_sdk.opcodes import Op

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any, Self

    Reply = dict[str, Any]


def stream_call(
    path: str,
    op: int,
    fields: Mapping[str, object],
    hellos: Sequence[bytes] = (),
    on_hello: Callable[[Reply], None] | None = None,
) -> Generator[tuple[int, Reply]]:
    """Make a streamed call over a connection of its own; yields the opcode and the body of each frame.

    ``hellos`` are the HELLOs to send first; ``on_hello`` gets the kernel's greeting before the call is sent. The last
    frame is the reply itself; a failed reply is raised as its exception. Closing the generator cancels the call.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    sock = open_connection(path, hellos)
    try:
        sock.sendall(frame(0, Op.HELLO, b'{"protocol":2}'))
        greeting = check_reply(receive(sock)[2])
        if on_hello is not None:
            on_hello(greeting)
            on_hello = None  # it refers to the stream: one that is dropped would stay open until a garbage collection
        sock.sendall(frame(1, op, encode(given)))
        while (got := receive(sock))[1] == Op.CHUNK:
            yield got[1], parse_reply(got[2])
        yield got[1], check_reply(got[2])
    except (OSError, ValueError) as error:
        raise ConnectionFailed(f"the connection to the kernel at {path} broke: {error}") from None
    finally:
        sock.close()


class Stream:
    """A streamed reply: an iterator over its parts and a context manager. The call is made with the first part.

    ``agent_id`` is the caller's id on the stream's connection, once the call is made.
    """

    op: Op
    agent_id: int | None = None

    def __init__(self, path: str, fields: Mapping[str, object], hellos: Sequence[bytes]) -> None:
        self._frames = stream_call(path, self.op, fields, hellos, self._greet)

    def _greet(self, greeting: Reply) -> None:
        self.agent_id = greeting["agent_id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def _next(self, last: str) -> Reply:
        """The next part; the reply after the last one becomes the attribute ``last``."""
        for op, body in self._frames:
            if op == Op.CHUNK:
                return body
            setattr(self, last, body)
        raise StopIteration

    def close(self) -> None:
        """Cancel the call, if it isn't answered yet."""
        self._frames.close()


class Pages(Stream):
    """The pages of a followed log."""

    op = Op.LOGS

    def __next__(self) -> Reply:
        for _, page in self._frames:
            if page["lines"] or page["missed"]:
                return page
        raise StopIteration


class ApprovalLists(Stream):
    """The calls that wait for a person's approval, whenever they have changed."""

    op = Op.APPROVALS

    def __next__(self) -> list[Reply]:
        _, reply = next(self._frames)
        found: list[Reply] = reply["pending"]
        return found


class Events(Stream):
    """Events, one after the other. ``missed`` counts those that the kernel has dropped before they could be read.

    ``boot_changed``: ``since`` is of an earlier run of the kernel; ``cut_off``: that run was killed, so that its last
    events may be lost, uncounted. Both are known with the first event.
    """

    op = Op.SUBSCRIBE
    missed = 0
    boot_changed = cut_off = False

    def __init__(self, path: str, fields: Mapping[str, object], hellos: Sequence[bytes]) -> None:
        super().__init__(path, fields, hellos)
        self._unread: list[Reply] = []  # the next one last

    def __next__(self) -> Reply:
        while not self._unread:
            op, page = next(self._frames)
            if op == Op.CHUNK:
                self.missed += page["missed"]
                self.boot_changed |= page["boot_changed"]
                self.cut_off |= page["cut_off"]
                self._unread = page["events"][::-1]
        return self._unread.pop()


class Outputs(Stream):
    """The output of a command as it is written. Once the command has ended, ``executed`` is the whole reply."""

    op = Op.EXEC
    executed: Reply | None = None

    def __next__(self) -> Reply:
        return self._next("executed")


class Thoughts(Stream):
    """The model's answer in pieces. Once it is complete, ``thought`` is the whole reply."""

    op = Op.THINK
    thought: Reply | None = None

    def __next__(self) -> str:
        return str(self._next("thought")["delta"])


class Parts(Stream):
    """An HTTP response in parts: its head, then its body. Once it is complete, ``response`` is the reply."""

    op = Op.HTTP
    response: Reply | None = None

    def __next__(self) -> Reply:
        return self._next("response")


class Archive(Stream):
    """An agent's archive in pieces of bytes. Once it is complete, ``exported`` is the reply."""

    op = Op.EXPORT
    exported: Reply | None = None

    def __next__(self) -> bytes:
        return a2b_base64(self._next("exported")["data"])


STREAMS: dict[int, type[Stream]] = {
    kind.op: kind for kind in (Pages, ApprovalLists, Events, Outputs, Thoughts, Parts, Archive)
}
