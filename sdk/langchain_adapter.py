"""``from langchain_adapter import AgentOSToolkit``: the adapter by the name that the original AgentOS gave it."""

from agentos_sdk.adapters import langchain
from agentos_sdk.adapters.langchain import *  # noqa: F403

__all__ = langchain.__all__
