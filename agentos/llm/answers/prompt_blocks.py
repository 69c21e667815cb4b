"""Blocks of a prompt as a program sent them, and which of them end what the vendor is to keep in its prompt cache.

Anthropic compares the beginning of a prompt block by block with what it has kept. So the blocks of a message have to
stay the same from question to question, though the marks move on. Other vendors get the joined text. No I/O.
"""

from collections.abc import Sequence
from typing import Final, Literal

from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

CacheMark = Literal["default", "5m", "1h"]
"""How long the vendor is to keep the prompt up to the end of a block."""
MAX_MARKS: Final = 4  # of a question: Anthropic refuses more


class Block(Struct, frozen=True):
    """A part of a message: its text from ``begin`` to ``end``, or its next image or tool call."""

    kind: Literal["text", "image", "call"]
    begin: int = 0
    end: int = 0
    mark: CacheMark | None = None


@define(eq=False)
class BlockList:
    """Collects blocks, and joins their texts by ``separator``."""

    separator: str
    _texts: list[str] = field(factory=list)
    _blocks: list[Block] = field(factory=list)
    _length: int = 0

    def add_text(self, text: str, mark: CacheMark | None = None) -> None:
        """Add a text; Anthropic takes no blank ones, so that these belong to no block."""
        if self._texts:
            self._length += len(self.separator)
        if text.strip():
            self._blocks.append(Block("text", self._length, self._length + len(text), mark))
        self._texts.append(text)
        self._length += len(text)

    def add(self, kind: Literal["image", "call"], mark: CacheMark | None = None) -> None:
        self._blocks.append(Block(kind, mark=mark))

    def add_message(self, text: str, blocks: Sequence[Block]) -> None:
        """Add the text of a message, without images and calls, and its blocks."""
        for block in blocks or (Block("text", 0, len(text)),):
            if part := text[block.begin : block.end]:
                self.add_text(part, block.mark)

    @property
    def text(self) -> str:
        return self.separator.join(self._texts)

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks; none where they are as usual: at most one text, first, and no marks."""
        usual = all(block.kind != "text" for block in self._blocks[1:])
        return () if usual and not any(block.mark for block in self._blocks) else tuple(self._blocks)


def wrap_blocks(blocks: Sequence[Block], before: int, length: int) -> Sequence[Block]:
    """The blocks of a text that got ``before`` characters before it and some behind it, and has ``length`` now."""
    moved = [replace(block, begin=block.begin + before, end=block.end + before) for block in blocks]
    if moved:
        moved[0] = replace(moved[0], begin=0)
        moved[-1] = replace(moved[-1], end=length)
    return moved
