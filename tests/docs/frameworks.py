"""Pages about agent frameworks: their agents use the Python of ``make frameworks``."""

import sys
from pathlib import Path

import pytest

PYTHON = Path(sys.prefix, "frameworks")
NEEDS = {
    "docs/how-to/run-your-langchain-agent.md": "langchain",
    "docs/how-to/run-your-autogen-agent.md": "autogen_agentchat",
    "docs/how-to/run-agents-of-other-frameworks.md": "smolagents",
}
"""What the environment ``frameworks`` of a page's directory has."""


def give_framework(page: str, home: Path) -> None:
    """Make the environment that a page tells to make; skips the page where that framework isn't installed."""
    if (package := NEEDS.get(page)) is None:
        return
    if not any(PYTHON.glob(f"lib/python3*/site-packages/{package}")):
        pytest.skip(f"{package} isn't in {PYTHON}, run `make frameworks`: {page} is NOT tested")
    (home / "frameworks").symlink_to(PYTHON)
