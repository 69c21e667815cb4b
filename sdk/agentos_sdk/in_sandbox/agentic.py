"""``from agentic import run_task`` for agents with only the SDK in their interpreter."""

from agentos_sdk import loop

__all__ = loop.__all__


def __getattr__(name: str) -> object:  # on first use, as in the SDK itself, so that nothing unused is loaded
    return getattr(loop, name)
