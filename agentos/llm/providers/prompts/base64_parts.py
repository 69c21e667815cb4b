"""Images of a request to a vendor, encoded in base64 in slices while they are sent.

The vendor's SDK composes the request with a short token in place of each image. Encoding 12 MiB, and the SDK's JSON of
them, would each hold up everything else in the process for 30 to 80 ms.
"""

import base64
import secrets
from collections.abc import AsyncIterator, Iterator

import httpx2
from attrs import define, field

SLICE = 48 << 10  # bytes encoded at a time, in 0.2 ms; a multiple of 3, so that the slices join to one encoding


@define(eq=False)
class Base64Parts:
    """The images of one request, by token."""

    _data: dict[str, bytes] = field(factory=dict)

    def add(self, data: bytes) -> str:
        """A token for ``data`` in base64. It is base64 itself, the same in both alphabets."""
        token = secrets.token_hex(16)
        self._data[token] = data
        return token

    def splice(self, request: httpx2.Request) -> None:
        """Put the images in place of their tokens in a composed request."""
        if not self._data:
            return
        pieces: list[bytes] = []
        rest = request.content
        for token, data in self._data.items():  # in the order in which they were added, which is that of the body
            before, found, rest = rest.partition(token.encode())
            assert found, "the SDK keeps the order of images"
            pieces += [before, data]
        pieces.append(rest)
        size = sum(len(text) for text in pieces[::2]) + sum(4 * -(-len(data) // 3) for data in pieces[1::2])
        request.headers["content-length"] = str(size)
        request.stream = _Spliced(pieces)


@define(eq=False)
class _Spliced(httpx2.AsyncByteStream):
    """A body: text and images in turn, beginning and ending with text."""

    _pieces: list[bytes]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self._pieces):
            for text in _encode(piece) if number % 2 else (piece,):
                yield text


def _encode(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), SLICE):
        yield base64.b64encode(data[at : at + SLICE])
