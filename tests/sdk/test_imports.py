"""What an agent pays for when it imports the client: the standard library, and little of it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agentos_sdk
from tests.support.wire import PATIENCE

SDK = str(Path(agentos_sdk.__file__).parents[1])
FIRST = [
    *("agentos_sdk", "agentos_sdk.blocking", "agentos_sdk.clients", "agentos_sdk.clients.client_calls"),
    *("agentos_sdk.errors", "agentos_sdk.frames"),
]
OTHERS = (
    *("clients.arguments", "encoding.chunks", "opcodes", "clients.question", "clients.suggestions"),
    *("loop.agentic_loop", "loop.program"),
)
PLAIN = [*FIRST, *(f"agentos_sdk.{name}" for name in OTHERS)]
LATER = {"json", "re", "enum", "socket", "selectors", "collections", "functools", "typing", "importlib", "logging"}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter, with nothing installed, has after a statement and hadn't before."""
    program = (
        f"import sys; sys.path.append({SDK!r}); before = set(sys.modules)\n"
        f"{statement}\n"
        "print(sorted(set(sys.modules) - before))"
    )
    # -I and -S: neither the environment nor site-packages can lend it what it lacks.
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    return set(ast.literal_eval(run.stdout))


@pytest.mark.parametrize("module", PLAIN)
def test_the_plain_modules_need_the_standard_library_only(module: str) -> None:
    foreign = {name for name in loaded_by(f"import {module}") if name.partition(".")[0] not in sys.stdlib_module_names}

    assert all(name.partition(".")[0] == "agentos_sdk" for name in foreign), foreign


def test_importing_the_client_loads_few_modules() -> None:
    loaded = loaded_by("from agentos_sdk import AgentOSClient")

    assert {name for name in loaded if name.startswith("agentos_sdk")} == set(FIRST)
    assert not loaded & LATER
    assert len(loaded) < 20, sorted(loaded)  # with os, which each program has


def test_the_package_itself_loads_nothing_until_it_is_used() -> None:
    assert {name for name in loaded_by("import agentos_sdk") if "agentos" in name} == {"agentos_sdk"}


def test_the_trio_client_names_its_extra_where_trio_is_not_installed() -> None:
    program = f"import sys; sys.path.append({SDK!r}); from agentos_sdk import connect"

    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=PATIENCE)

    last = run.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: connect needs ")
    assert last.endswith("which is not installed: pip install './sdk[trio]' in AgentOS's repository")


def test_the_fake_kernel_names_its_extra_where_attrs_is_not_installed() -> None:
    program = f"import sys; sys.path.append({SDK!r}); from agentos_sdk.testing import FakeKernel"

    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=PATIENCE)

    last = run.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: FakeKernel needs ")
    assert last.endswith("which is not installed: pip install './sdk[testing]' in AgentOS's repository")


def test_a_name_it_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'AgentOSClinet'"):
        _ = agentos_sdk.AgentOSClinet
