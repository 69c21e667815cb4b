"""The agentic loop: a model works on a task by tools until it is done, and nothing is done twice after a crash.

Names are imported on first use, so that the loop for Trio is loaded only where it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from typing import Any

    from .agentic_loop import AgenticLoop, run_task
    from .engine.budget import Budget
    from .engine.conversation import Conversation
    from .engine.result import TaskResult
    from .tools.functions import tool
    from .trio_loop import TrioAgenticLoop, TrioConversation, trio_run_task

_MODULE_OF = {
    "AgenticLoop": "agentic_loop",
    "Budget": "engine.budget",
    "Conversation": "engine.conversation",
    "TaskResult": "engine.result",
    "TrioAgenticLoop": "trio_loop",
    "TrioConversation": "trio_loop",
    "run_task": "agentic_loop",
    "tool": "tools.functions",
    "trio_run_task": "trio_loop",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"{__name__}.{_MODULE_OF[name]}", fromlist=[name]), name)
