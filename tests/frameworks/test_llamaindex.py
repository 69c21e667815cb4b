"""The recipe for LlamaIndex in the documentation, as an agent: its environment is another one than the others'."""

import re
import sys
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.frameworks.programs import RULES
from tests.support.kernel import running, until
from tests.system.agents import info, lines, up, write

PAGE = Path(__file__).parents[2] / "docs/how-to/run-agents-of-other-frameworks.md"
PYTHON = Path(sys.prefix, "llamaindex/bin/python")
TOML = """
[llm]
provider = "offline"
openai_endpoint = true
[llm.offline]
rules = "{rules}"
"""


@pytest.mark.usefixtures("framework", "kernels")
def test_the_recipe_calls_its_tool_and_answers(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}, run `make test-frameworks`: the recipe for LlamaIndex is NOT tested")
    found = re.search(r"```python\n(# with_llamaindex\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with running(TOML.format(rules=rules)) as kernel, AgentOSClient(kernel.socket) as client:
        script = write(kernel, "with_llamaindex.py", found[1])
        up(client.spawn("llama", script, python=str(PYTHON), limits={"memory": "1G"}, restart="temporary"))
        until(lambda: info(client, "llama")["state"] == "exited", "it has ended")

        assert lines(client, "llama", "stdout") == ["It says: rain in Paris"], lines(client, "llama", "stderr")
