"""``from agentos import AgentOSClient`` for agents whose interpreter has only the SDK."""

import agentos_sdk

__all__ = agentos_sdk.__all__


def __getattr__(name: str) -> object:  # on first use, as the SDK itself does: only what is used is loaded
    return getattr(agentos_sdk, name)
