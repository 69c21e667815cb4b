"""Decompression of response bodies in pieces of a fixed size, however much a few bytes expand."""

import zlib
from collections.abc import Mapping

from .request import Unreadable

PIECE_BYTES = 64 << 10  # inflated at a time, in 0.2 ms
WINDOWS: Mapping[str, int] = {  # of zlib, by content coding
    "gzip": 16 + zlib.MAX_WBITS,
    "x-gzip": 16 + zlib.MAX_WBITS,
    "deflate": zlib.MAX_WBITS,
}
ACCEPTED = "gzip, deflate"


def limit_accepted(value: str) -> str:
    """An ``Accept-Encoding`` without the codings that can't be inflated here, and without ``*``."""
    kept = [each for each in value.split(",") if each.partition(";")[0].strip().lower() in (*WINDOWS, "identity")]
    return ",".join(kept).strip() or ACCEPTED


class Inflater:
    """Inflates a body of one content coding; raises :class:`Unreadable` if it is broken."""

    def __init__(self, coding: str) -> None:
        self._window = WINDOWS[coding]
        self._inflate = zlib.decompressobj(self._window)
        self._unread = b""
        self._has_begun = False

    def feed(self, data: bytes) -> None:
        """Add compressed bytes, when :meth:`take` has no more."""
        self._unread = data

    def take(self) -> bytes:
        """At most ``PIECE_BYTES`` of what has been fed; none if more has to be fed."""
        while self._unread:
            if self._inflate.eof:  # gzip files may stand behind each other
                self._inflate = zlib.decompressobj(self._window)
            piece = self._inflate_some(self._unread)
            self._unread = self._inflate.unconsumed_tail or self._inflate.unused_data
            if piece:
                return piece
        return b""

    def check_end(self) -> None:
        """Raise :class:`Unreadable` if the body is incomplete."""
        if self._has_begun and not self._inflate.eof:
            raise Unreadable("its compressed body is incomplete")

    def _inflate_some(self, data: bytes) -> bytes:
        begun, self._has_begun = self._has_begun, True
        try:
            return self._inflate.decompress(data, PIECE_BYTES)
        except zlib.error:
            if begun or self._window != zlib.MAX_WBITS:
                raise Unreadable("its compressed body is broken") from None
        self._window = -zlib.MAX_WBITS  # servers also call a body deflate that lacks zlib's header
        self._inflate = zlib.decompressobj(self._window)
        return self._inflate_some(data)
