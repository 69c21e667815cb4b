"""What is kept of a command's output, or passed on as it comes."""

import pytest

from agentos.agents.commands import output_streams
from agentos.agents.commands.output_streams import BYTES_PER_SECOND, Live, Stream, Tail


def test_of_a_stream_the_beginning_is_kept_and_a_cut_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_streams, "MAX_KEPT_BYTES", 5)
    stream = Stream()

    assert stream.take(b"abc") == 3 / BYTES_PER_SECOND
    stream.take(b"de")
    assert (bytes(stream.kept), stream.truncated) == (b"abcde", False)
    stream.take(b"f")
    assert (bytes(stream.kept), stream.truncated) == (b"abcde", True)
    stream.take(b"")
    assert stream.truncated


def test_of_a_tail_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_streams, "MAX_TAIL_BYTES", 5)
    tail = Tail()

    for data in (b"abc", b"def", b"gh"):
        tail.take(data)

    assert bytes(tail.kept) == b"defgh"


async def test_what_is_passed_on_is_whole_characters_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_streams, "PIECE_CHARS", 2)
    sent: list[tuple[str, str]] = []

    async def send(name: str, text: str) -> None:
        sent.append((name, text))

    live = Live(name="stderr", send=send)
    live.take("abcé".encode()[:-1])
    await live.wait_delivered()
    assert sent == [("stderr", "ab"), ("stderr", "c")]
    live.take("é".encode()[1:] + b"\xc3")
    await live.end()

    assert sent[2:] == [("stderr", "é�")]
    assert not live.kept
