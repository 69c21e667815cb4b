"""Base class of requests, with their opcode and the type of their reply."""

from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar

from agentos_sdk.codec import Rule
from agentos_sdk.opcodes import Op

Reply = TypeVar("Reply")

Synchronous: TypeAlias = Annotated[
    bool, Rule(lambda later: not later, "false: this kernel answers a call on its own connection and nowhere else")
]
"""``async``, as the original's clients send it."""

RequestId: TypeAlias = int | str | None
"""``request_id``, which the original's clients send with ``async``.

It has no effect, since a call is answered on its own connection.
"""


class Request(Generic[Reply]):
    """Base of every request. ``reply`` is the class (or type expression) that a successful reply decodes to."""

    op: ClassVar[Op]
    reply: ClassVar[Any]
