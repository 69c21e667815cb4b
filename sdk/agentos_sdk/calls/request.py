"""Base class of requests, with their opcode and the type of their reply."""

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from agentos_sdk.opcodes import Op

Reply = TypeVar("Reply")

RequestId: TypeAlias = int | str | None
"""``request_id``, by which a version 1 client knows the reply of a call with ``async`` again; see ``background``."""


class Request(Generic[Reply]):
    """Base of every request. ``reply`` is the class (or type expression) that a successful reply decodes to."""

    op: ClassVar[Op]
    reply: ClassVar[Any]
    __attrs_attrs__: ClassVar[Any]  # the decorator of a request sets it
