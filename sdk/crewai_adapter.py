"""``from crewai_adapter import AgentOSCrewTools``: the adapter by the name that the original AgentOS gave it."""

from agentos_sdk.adapters import crewai
from agentos_sdk.adapters.crewai import *  # noqa: F403

__all__ = crewai.__all__
