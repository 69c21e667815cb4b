"""The type of each call's request, by its opcode."""

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from agentos_sdk import calls
from agentos_sdk.opcodes import Op

from .request import Request


@cache
def request_types() -> Mapping[Op, type[Request[Any]]]:
    """The request type of each call that has one."""
    for module in pkgutil.walk_packages(calls.__path__, f"{calls.__name__}."):
        importlib.import_module(module.name)
    found = [cls for cls in Request.__subclasses__() if getattr(sys.modules[cls.__module__], cls.__name__) is cls]
    return {cls.op: cls for cls in found}
