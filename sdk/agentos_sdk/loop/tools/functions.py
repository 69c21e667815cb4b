"""Tools from typed Python functions: the schema is the signature, the description the docstring."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union

from agentos_sdk.loop.engine.effects import Run, TookTooLong, Work

from .call_tools import DONE
from .tools import Context, Tool, ToolError

SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


TIMEOUT = 600.0  # seconds that a function may take, if it isn't said otherwise


def tool(function: Callable[..., Any], *, repeatable: bool = False, timeout: float | None = TIMEOUT) -> Tool:
    """A tool that calls ``function``; raises ``TypeError`` if a parameter has no type that a model can give.

    Parameters have the types str, int, float, bool, list, dict, Literal, Optional, or list of one of these. What the
    function returns is shown to the model: text as it is, other values as JSON. An exception is shown, too.
    ``repeatable``: it only reads, and may be called again if a crash has interrupted it.

    After ``timeout`` seconds the model is told that it took too long. An async function is cancelled then; another one
    goes on in its thread. With None it may take any time, and one that isn't async runs in the thread of the loop.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected seconds above 0, or None, got {timeout!r}")
    if not (description := inspect.getdoc(function) or "").strip():
        raise TypeError(f"{function.__name__}: expected a docstring, which tells the model what the tool does")
    if function.__name__ == DONE:
        raise TypeError(f"{DONE}: expected another name: the loop's own tool {DONE} ends the task")
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{function.__name__}: {parameter} can't be an argument of a tool: give it a name")
        if name not in hints:
            raise TypeError(f"{function.__name__}: {name} has no type: write for example {name}: str")
        properties[name] = _schema(hints[name], f"{function.__name__}: {name}")
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            try:
                json.dumps(parameter.default, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{function.__name__}: {name}: a default that JSON can't have: {error}") from None
            properties[name] = {**properties[name], "default": parameter.default}

    def act(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
        try:
            result = yield Run(function, arguments, timeout)
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except TookTooLong:
            state = "it was cancelled" if inspect.iscoroutinefunction(function) else "it may still be running"
            raise ToolError(f"{function.__name__} took longer than {timeout:g} s: {state}") from None
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    parameters = {"type": "object", "properties": properties, "required": required}
    after_crash: Literal["again", "never"] = "again" if repeatable else "never"
    return Tool(function.__name__, description, parameters, act, after_crash)


def _schema(hint: Any, where: str) -> dict[str, Any]:
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and arguments:
        return {"type": "array", "items": _schema(arguments[0], where)}
    if origin is dict:
        return {"type": "object"}
    if origin is Literal:
        if not all(type(each) in (str, int, bool, type(None)) for each in arguments):
            raise TypeError(f"{where}: expected a Literal of str, int, bool or None, got {hint!r}")
        types_of_values = {SIMPLE.get(type(each), "null") for each in arguments}
        return {**({"type": types_of_values.pop()} if len(types_of_values) == 1 else {}), "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        kinds = [each for each in arguments if each is not type(None)]
        schemas = [_schema(each, where) for each in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    raise TypeError(f"{where}: expected str, int, float, bool, list, dict, Literal or Optional, got {hint!r}")
