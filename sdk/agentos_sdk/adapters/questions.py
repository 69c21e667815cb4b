"""What the adapters of chat models share: the settings of a question, and the signatures of tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SETTINGS = {
    *("model", "temperature", "max_tokens", "stop", "timeout", "thinking_level"),
    *("tools", "tool_choice", "class", "response_schema"),
}
MAX_SIGNATURES = 1000  # calls whose signature is kept; the oldest is dropped


def check_settings(names: Iterable[str]) -> None:
    """Raise ``TypeError`` for settings that a question to the kernel's model doesn't have."""
    if unknown := set(names) - SETTINGS:
        raise TypeError(f"{', '.join(sorted(unknown))}: the kernel's model has no such setting")


def choose_tool(tools: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The one tool that has to be called; raises ``ValueError`` if it isn't among ``tools``."""
    chosen = [tool for tool in tools if tool["name"] == name]
    if not chosen:
        names = ", ".join(tool["name"] for tool in tools) or "no tool at all"
        raise ValueError(f"tool_choice: expected auto, none, required or one of the tools, got {name!r} with {names}")
    return chosen


def write_arguments(arguments: Any) -> str:
    """A call's arguments as JSON; the model's text, as it is, where that is no JSON object."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def read_arguments(arguments: Any) -> Any:
    """The arguments that :func:`write_arguments` has written, as THINK takes them."""
    try:
        return json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


class Signatures:
    """The providers' signatures of tool calls, for frameworks whose messages have no place for them."""

    def __init__(self) -> None:
        self._by_call: dict[str, str] = {}

    def keep(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Keep the signatures of an answer's calls."""
        for call in calls:
            if call.get("signature"):
                self._by_call[call["id"]] = call["signature"]
        while len(self._by_call) > MAX_SIGNATURES:
            del self._by_call[next(iter(self._by_call))]

    def sign(self, call: dict[str, Any]) -> dict[str, Any]:
        """The call with its signature, as THINK takes it."""
        return {**call, "signature": self._by_call.get(call["id"])}
