"""Imports go down: as the contracts in pyproject.toml say, and the contracts do catch what they are for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("agentos", "supervisors", "sdk/agentos_attacks", "sdk/agentos_sdk")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for place in PLACES:
        shutil.copytree(ROOT / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def lint(place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place}:{place}/sdk"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_layers_hold() -> None:
    done = lint(ROOT)

    assert done.returncode == 0, done.stdout


ASTRAY = [
    ("agentos/kernel/caller.py", "agentos.syscalls.messages", "Imports go down"),
    ("agentos/sandbox/sandbox.py", "agentos.kernel.caller", "Imports go down"),
    ("supervisors/child.py", "agentos_sdk.errors", "Imports go down"),
    ("agentos/services/mail/mailboxes.py", "agentos_sdk.calls.messages", "Requests and replies stay at the edge"),
    (
        "agentos/userland/cli/agents/logs.py",
        "agentos.agents.life.output",
        "Programs see the kernel through system calls",
    ),
    ("sdk/agentos_sdk/start.py", "attrs", "Plain rooms: standard library only"),
    ("sdk/agentos_sdk/clients/suggestions.py", "agentos_sdk.values", "Plain rooms: standard library only"),
    ("sdk/agentos_sdk/loop/engine/engine.py", "msgspec", "Plain rooms: standard library only"),
]


def test_imports_that_go_astray_are_caught(copy: Path) -> None:
    for file, imported, _ in ASTRAY:
        planted = copy / file
        planted.write_text(f"{planted.read_text()}\nimport {imported}\n")

    done = lint(copy)

    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    contracts = {contract for _, _, contract in ASTRAY}
    assert said.count("BROKEN") == sum(said.count(f"{contract} BROKEN") for contract in contracts) == len(contracts)
    found = said.partition("Broken contracts")[2]
    for file, imported, contract in ASTRAY:
        module = file.removeprefix("sdk/").removesuffix(".py").replace("/", ".")
        broken = found.partition(f" {contract} ---")[2].lstrip("- ").partition(" ---")[0]  # of this contract alone
        assert re.search(rf"{re.escape(module)} -> {re.escape(imported)} \(l\.\d+\)", broken), (module, done.stdout)


def test_the_blocking_client_imports_nothing_but_the_standard_library() -> None:
    program = "import sys; from agentos_sdk import AgentOSClient; print(*{name.split('.')[0] for name in sys.modules})"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert (
        set(loaded) & {"attr", "attrs", "cattrs", "trio", "httpx", "agentos", "supervisors", "click", "google"} == set()
    )
