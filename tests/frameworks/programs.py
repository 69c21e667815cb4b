"""Runs programs that use an agent framework in jails, with the Python of ``make test-frameworks``."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import info, lines, up

INSIDE = Path(__file__).parent / "inside"
PYTHON = Path(sys.prefix, "frameworks/bin/python")
QUIET = {"LANGSMITH_TRACING": "false"}
TOML = """
[llm]
provider = "offline"
[llm.offline]
rules = "{rules}"
"""
RULES = r'''
[[rule]]
match = 'weather in (\w+)'
tool_calls = [{ name = "weather", arguments = { place = '\1' } }]

[[rule]]
match = 'write (\S+)'
tool_calls = [{ name = "write_file", arguments = { path = '\1', content = "by a graph" } }]

[[rule]]
match = 'compute (\S+)'
tool_calls = [{ name = "exec", arguments = { command = 'echo $((\1))' } }]

[[rule]]
match = 'steal (\S+)'
tool_calls = [{ name = "read_file", arguments = { path = '\1' } }]

[[rule]]
tool = "write_file"
match = '(?s).*'
reply = 'It says: \g<0>'

[[rule]]
tool = "exec"
match = '(?s).*'
reply = 'It says: \g<0>'

[[rule]]
tool = "read_file"
match = '(?s).*'
reply = 'It says: \g<0>'

[[rule]]
tool = "weather"
match = '(?s).*'
reply = 'It says: \g<0>'

[[rule]]
match = 'not a place'
reply = 'nothing that is JSON'

[[rule]]
match = 'hello'
reply = 'Hello yourself.'

[[rule]]
match = 'count the words'
tool_calls = [{ name = "done", arguments = { summary = "two words" } }]

[[rule]]
match = 'multiply'
reply = """
```python
print(6 * 7)
```
"""

[[rule]]
match = 'slow'
reply = "one two three four five"
'''


def need(package: str, venv: str = "frameworks") -> Path:
    """The Python of an environment that has a package; skips where there is none."""
    place = Path(sys.prefix, venv)
    if not any(place.glob(f"lib/python3*/site-packages/{package}")):
        pytest.skip(f"{package} isn't in {place}, run `make test-frameworks`: its adapter is NOT tested")
    return place / "bin/python"


def report_of(kernel: Kernel, client: AgentOSClient, script: str, **more: Any) -> Mapping[str, Any]:
    """What a program of ``inside`` prints at its end. An import of a framework takes some seconds on a busy machine."""
    name = Path(script).stem.replace("_", "-")
    settings = {"python": str(PYTHON), "env": QUIET, "limits": {"memory": "1G"}, "restart": "temporary", **more}
    up(client.spawn(name, str(INSIDE / script), **settings))
    until(lambda: info(client, name)["state"] not in ("starting", "running"), f"{name} has ended")
    [*_, last] = lines(client, name, "stdout") or [""]
    assert last.startswith("report "), lines(client, name, "stderr")
    report: Mapping[str, Any] = json.loads(last.removeprefix("report "))
    return report


def audited(client: AgentOSClient, name: str) -> set[tuple[str, str]]:
    """The calls of the program of that name in the audit log, each with its decision."""
    entries = client.get_audit_log(limit=1000)["entries"]
    return {(entry["call"], entry["decision"]) for entry in entries if entry["name"] == name}
