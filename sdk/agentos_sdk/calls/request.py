"""Base classes of requests, with their opcode and the type of their reply, and of replies; types of their fields."""

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, get_args

from agentos_sdk.encoding.codec import Rule
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

Reply = TypeVar("Reply")

Number: TypeAlias = Annotated[int, Rule(lambda number: 0 <= number < 1 << 63, "a whole number from 0 up")]
Page: TypeAlias = Annotated[int, Rule(lambda limit: 1 <= limit <= 1000, "a whole number from 1 to 1000")]

RequestId: TypeAlias = int | str | None
"""``request_id``, by which a version 1 client knows the reply of a call with ``async`` again; see ``background``."""


class Request(Generic[Reply]):
    """Base of every request. ``reply`` is its argument: the type that a successful reply decodes to."""

    op: ClassVar[Op]
    reply: ClassVar[Any]
    __attrs_attrs__: ClassVar[Any]  # the decorator of a request sets it

    def __init_subclass__(cls) -> None:
        [cls.reply] = get_args(vars(cls)["__orig_bases__"][0])


@record
class SuccessfulReply:
    """Base of every reply that is an object: of one that failed ``success`` is false."""

    success: bool = True


@cache
def request_types() -> Mapping[Op, type[Request[Any]]]:
    """The request type of each call that has one, by its opcode. Imports all modules of this package."""
    import pkgutil  # programs that make calls don't need it

    package = sys.modules[__package__]
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    found = [cls for cls in Request.__subclasses__() if getattr(sys.modules[cls.__module__], cls.__name__) is cls]
    return {cls.op: cls for cls in found}
