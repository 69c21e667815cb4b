"""A text buffer between a producer that never blocks and a slow consumer; unread text is merged into one piece."""

import trio
from attrs import define, field


@define(eq=False)
class TextBuffer:
    """Unread text, and whether its producer has ended. It has no limit of its own."""

    ended: bool = False
    _text: list[str] = field(factory=list)
    _bell: trio.Event = field(factory=trio.Event)

    def add(self, text: str) -> None:
        self._text.append(text)
        self._bell.set()

    def end(self) -> None:
        """Mark the end: no more text is added."""
        self.ended = True
        self._bell.set()

    async def next(self) -> str:
        """Wait for text and return all that has arrived; empty at the end."""
        while not self._text and not self.ended:
            await self._bell.wait()
            self._bell = trio.Event()
        return self.take()

    def take(self) -> str:
        """Return all unread text without waiting."""
        text = "".join(self._text)
        self._text = []
        return text
