"""``from agentic import run_task, AgenticLoop``: the loop by the name that the original AgentOS gave it."""

from typing import TYPE_CHECKING

from agentos_sdk import loop

if TYPE_CHECKING:
    from agentos_sdk.loop import *  # noqa: F403 - for mypy and editors

__all__ = loop.__all__


def __getattr__(name: str) -> object:  # on first use, as in the SDK itself, so that nothing unused is loaded
    return getattr(loop, name)
