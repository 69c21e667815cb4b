"""Pages about agent frameworks: their agents use the Python of ``make frameworks``."""

import sys
from pathlib import Path

import pytest

NEEDS = {
    "docs/how-to/run-your-crewai-agent.md": "crewai",
    "docs/how-to/run-your-langchain-agent.md": "langchain",
    "docs/how-to/run-your-autogen-agent.md": "autogen_agentchat",
    "docs/how-to/run-agents-of-other-frameworks.md": "smolagents",
}
"""What the environment of a page has: ``crewai`` for CrewAI, otherwise ``frameworks``."""


def give_framework(page: str, home: Path) -> None:
    """Make the environment that a page tells to make; skips the page where that framework isn't installed."""
    if (package := NEEDS.get(page)) is None:
        return
    venv = "crewai" if package == "crewai" else "frameworks"
    place = Path(sys.prefix, venv)
    if not any(place.glob(f"lib/python3*/site-packages/{package}")):
        pytest.skip(f"{package} isn't in {place}, run `make test-frameworks`: {page} is NOT tested")
    (home / venv).symlink_to(place)
