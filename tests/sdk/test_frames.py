"""Frames out of a stream, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos_sdk.errors import BadFrame, TooLarge
from agentos_sdk.frames import HEADER, MAGIC, MAX_PAYLOAD, Frame, Frames, frame

LIMIT = 1000
FRAMES = st.lists(
    st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.binary(max_size=60) | st.just(b"x" * LIMIT)),
    max_size=8,
)


def reader(limit: int = LIMIT) -> Frames:
    return Frames([limit] * 256)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """``data`` in pieces of these sizes, again from the first when they are used up."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


def read(pieces: list[bytes], frames: Frames | None = None) -> list[Frame]:
    frames = frames or reader()
    return [found for piece in pieces for found in frames.take(piece)]


def test_a_frame_is_laid_out_as_the_document_draws_it() -> None:
    assert frame(0x01020304, 0x21, b"{}") == bytes.fromhex("544e4741 04030201 21 0200000000000000") + b"{}"
    assert (HEADER.size, MAGIC, MAX_PAYLOAD) == (17, 0x41474E54, 16 * 1024 * 1024)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_frames_survive_any_splitting_of_the_stream(wanted: list[Frame], sizes: list[int]) -> None:
    data = b"".join(frame(*each) for each in wanted)

    assert read(cut(data, sizes)) == wanted
    assert read([data]) == wanted


@given(FRAMES, st.integers(0, 200))
def test_a_frame_comes_out_with_its_last_byte_and_not_before(wanted: list[Frame], at: int) -> None:
    data = b"".join(frame(*each) for each in wanted)
    ends = [len(b"".join(frame(*each) for each in wanted[: n + 1])) for n in range(len(wanted))]

    assert len(reader().take(data[:at])) == sum(end <= at for end in ends)


@given(FRAMES, st.binary(min_size=17, max_size=40), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_all_before_a_bad_frame_comes_out_and_nothing_after(good: list[Frame], bad: bytes, sizes: list[int]) -> None:
    data = b"".join(frame(*each) for each in good) + b"\0" + bad + frame(1, 0, b"later")
    frames = reader()

    assert read(cut(data, sizes), frames) == good
    assert isinstance(frames.broken, BadFrame)
    assert frames.take(frame(1, 0, b"")) == []


@given(st.integers(LIMIT + 1, (1 << 64) - 1), st.integers(0, 0xFFFFFFFF), st.integers(1, 17))
def test_a_length_over_the_limit_breaks_the_stream_with_its_header(length: int, number: int, size: int) -> None:
    frames = reader()
    header = HEADER.pack(MAGIC, number, 0x20, length)

    assert read(cut(header, [size]), frames) == []
    assert isinstance(frames.broken, TooLarge)
    assert (frames.broken_id, frames.broken_op) == (number, 0x20)
    assert str(length) in str(frames.broken)


def test_each_opcode_has_a_limit_of_its_own() -> None:
    limits = [10] * 256
    limits[0x20] = 20

    assert Frames(limits).take(frame(1, 0x20, b"x" * 20)) == [(1, 0x20, b"x" * 20)]
    frames = Frames(limits)
    assert frames.take(frame(1, 0x21, b"x" * 20)) == []
    assert isinstance(frames.broken, TooLarge)


@pytest.mark.parametrize("size", [0, 1, 16])
def test_less_than_a_header_is_waited_for_in_silence(size: int) -> None:
    frames = reader()

    assert frames.take(frame(1, 0, b"")[:size]) == []
    assert frames.broken is None
    assert frames.awaited == 0


@given(st.integers(1, LIMIT), st.integers(0, 100))
def test_how_much_is_awaited_is_known_once_the_header_is_there(length: int, some: int) -> None:
    frames = reader()
    data = frame(1, 0, b"x" * length)

    frames.take(data[: 17 + min(some, length - 1)])
    assert frames.awaited == len(data)
    frames.take(data[17 + min(some, length - 1) :])

    assert frames.awaited == 0


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_any_bytes_are_frames_or_break_the_stream(pieces: list[bytes]) -> None:
    frames = reader()

    found = read(pieces, frames)

    assert frames.broken is not None or sum(17 + len(body) for _, _, body in found) <= sum(map(len, pieces))
