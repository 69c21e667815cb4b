"""Lines of an ended agent's output, packed: a thousand such agents are remembered."""

import marshal
from collections.abc import Iterable, Iterator

from msgspec import Struct

from agentos_sdk.values import Line


class PackedLines(Struct, frozen=True, gc=False):
    """``data`` is marshal's: it has surrogates and exact times, and is read by the kernel that wrote it."""

    data: bytes
    count: int

    @classmethod
    def pack(cls, lines: Iterable[Line]) -> "PackedLines":
        fields = [(line.at, line.stream, line.text) for line in lines]
        return cls(marshal.dumps(fields), len(fields))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Line]:
        for at, stream, text in marshal.loads(self.data):  # noqa: S302
            yield Line(at, stream, text)
