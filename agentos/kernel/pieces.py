"""Text between somebody who never waits and a reader who may be slow: what isn't taken yet is one piece."""

import trio
from attrs import define, field


@define(eq=False)
class Pieces:
    ended: bool = False
    _text: list[str] = field(factory=list)
    _bell: trio.Event = field(factory=trio.Event)

    def add(self, text: str) -> None:
        self._text.append(text)
        self._bell.set()

    def end(self) -> None:
        """Nothing more is added."""
        self.ended = True
        self._bell.set()

    async def next(self) -> str:
        """What has come meanwhile; nothing when it is over."""
        while not self._text and not self.ended:
            await self._bell.wait()
            self._bell = trio.Event()
        return self.take()

    def take(self) -> str:
        """What has come and isn't taken yet."""
        text = "".join(self._text)
        self._text = []
        return text
