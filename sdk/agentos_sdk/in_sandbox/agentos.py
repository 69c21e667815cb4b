"""``from agentos import AgentOSClient`` for agents with only the SDK in their interpreter."""

import agentos_sdk

__all__ = agentos_sdk.__all__


def __getattr__(name: str) -> object:  # on first use, as in the SDK itself, so that nothing unused is loaded
    return getattr(agentos_sdk, name)
