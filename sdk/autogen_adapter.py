"""``from autogen_adapter import AgentOSAssistant``: the adapter by the name that the original AgentOS gave it."""

from agentos_sdk.adapters import autogen
from agentos_sdk.adapters.autogen import *  # noqa: F403

__all__ = autogen.__all__
