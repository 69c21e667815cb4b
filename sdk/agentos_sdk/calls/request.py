"""A request knows its opcode and the type of its reply."""

from typing import Any, ClassVar, Generic, TypeVar

from agentos_sdk.opcodes import Op

Reply = TypeVar("Reply")


class Request(Generic[Reply]):
    """Base of every request. ``reply`` is the class (or type expression) that a successful reply decodes to."""

    op: ClassVar[Op]
    reply: ClassVar[Any]
