"""``from agentic import run_task, AgenticLoop``: the loop by the name that the original AgentOS gave it."""

from typing import TYPE_CHECKING

from agentos_sdk import loop

if TYPE_CHECKING:
    from agentos_sdk.loop import (
        AgenticLoop,
        Budget,
        Conversation,
        TaskResult,
        TrioAgenticLoop,
        TrioConversation,
        run_task,
        tool,
        trio_run_task,
    )

__all__ = [
    "AgenticLoop",
    "Budget",
    "Conversation",
    "TaskResult",
    "TrioAgenticLoop",
    "TrioConversation",
    "run_task",
    "tool",
    "trio_run_task",
]


def __getattr__(name: str) -> object:  # on first use, as in the SDK itself, so that nothing unused is loaded
    return getattr(loop, name)
