"""The SDK of MCP is imported when a server is used, and not before; without it the error says what to install."""

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_starts_without_importing_it() -> None:
    assert run("import sys, agentos.boot.run; print({'mcp', 'mcp_types'} & set(sys.modules))") == "set()"


def test_without_it_the_error_names_the_package() -> None:
    program = """
import sys
sys.modules["mcp"] = None
from agentos.mcp.connection.sdk import load_sdk
try:
    load_sdk()
except Exception as error:
    print(type(error).__name__, error)
"""

    assert run(program) == (
        "Unavailable MCP servers need the package mcp: pip install '.[mcp]' in AgentOS's repository, "
        "and start the kernel again"
    )
