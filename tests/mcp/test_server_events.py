"""Server-sent events of a response: the same ones in whatever parts they are received."""

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from agentos.http.sse import MAX_EVENT
from agentos.mcp.connection.server_events import ServerEvents
from agentos.mcp.errors import BadServer


@define
class Parts:
    """A body that is received in these parts."""

    parts: list[bytes]

    async def read(self) -> bytes:
        return self.parts.pop(0) if self.parts else b""


async def events_of(parts: list[bytes]) -> list[bytes]:
    events, found = ServerEvents(Parts([part for part in parts if part])), []  # type: ignore[arg-type]
    while (data := await events.receive()) is not None:
        found.append(data)
    return found


@given(st.data())
async def test_events_are_the_same_in_whatever_parts_they_are_received(data: st.DataObject) -> None:
    lines = st.sampled_from([b"data: x", b"data:y", b"event: message", b": ping", b"data: "])
    ends = st.sampled_from([b"\r\n\r\n", b"\n\n", b"\r\r", b"\n"])
    body = b"".join(line + end for line, end in data.draw(st.lists(st.tuples(lines, ends), max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))

    found = await events_of([body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)])

    assert found == await events_of([body])


async def test_an_event_may_come_byte_by_byte() -> None:
    assert await events_of([bytes([each]) for each in b"data: a\r\ndata: b\r\n\r\ndata: c\n\n"]) == [b"a\nb", b"c"]


@pytest.mark.parametrize("part", [b"x" * 4096, b"data: x\n" * 512], ids=["a line", "many lines"])
async def test_an_event_has_an_end(part: bytes) -> None:
    with pytest.raises(BadServer, match="it sent an event of more than 1 MiB"):
        await events_of([b"data: ", *[part] * (MAX_EVENT // 4096)])
