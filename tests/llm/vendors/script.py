"""What a vendor is to answer, whichever protocol it speaks."""

from collections.abc import Mapping, Sequence
from typing import Literal

import trio
from attrs import field, frozen

from agentos_sdk.values import ToolCall, Usage

MODEL = "model-by-name"


@frozen
class Text:
    """A piece of the answer, as one event of the stream."""

    text: str


@frozen
class Thoughts:
    """A piece of what nobody is shown."""

    text: str


@frozen
class Called:
    """The model wants a tool called; ``id=""``: this vendor gives calls no ids."""

    call: ToolCall


@frozen
class Until:
    """Go on when the event is set, or stop when the client has left."""

    event: trio.Event = field(factory=trio.Event)


@frozen
class Break:
    """End the connection in the middle: by a reset, or orderly but without the end of the body."""

    how: Literal["reset", "cut"]


@frozen
class Trouble:
    """An error, told within the stream."""

    status: int
    message: str


@frozen
class Raw:
    """Bytes of the body as they are."""

    data: bytes


Step = Text | Thoughts | Called | Until | Break | Trouble | Raw


@frozen
class Says:
    """An answer. ``finish=None``: the stream ends in good order, but nothing said that the answer was at its end.

    ``finish`` is a FinishReason, ``blocked``, or the vendor's own word.
    """

    steps: Sequence[Step] = ()
    finish: str | None = "stop"
    usage: Usage | None = Usage(11, 7, 0)
    model: str = MODEL


@frozen
class Refuses:
    """An error instead of an answer. ``after``: seconds, told in the vendor's own way. ``reason``: its word for it."""

    status: int
    message: str = "no"
    after: float | None = None
    reason: str | None = None
    headers: Mapping[str, str] = {}
    body: bytes | None = None  # instead of what the vendor would send


@frozen
class Silent:
    """Take the request and never say anything."""


Script = Says | Refuses | Silent
