"""The wheel, built from the sdist and installed into an environment with nothing but what it declares, works."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.blocks import ROOT
from tests.support.kernel import environment
from tests.support.wire import PATIENCE

LONGEST = 2 * PATIENCE  # for what takes seconds of CPU time
BUILD = "import sys, hatchling.build as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
Run = Callable[..., subprocess.CompletedProcess[str]]


DEMOS = [file.relative_to(ROOT) for file in (ROOT / "demos").rglob("*") if file.is_file() and file.suffix != ".pyc"]
ALIASES = {"agentic.py", "autogen_adapter.py", "crewai_adapter.py", "langchain_adapter.py"}


def build(kind: str, source: Path, target: Path) -> Path:
    """Build ``build_sdist`` or ``build_wheel`` as pip does, with the backend that pyproject.toml names."""
    command = [sys.executable, "-c", BUILD, kind, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


def required(distribution_: Distribution, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """What a distribution requires, and what that requires; all of it is installed here."""
    for line in distribution_.requires or ():
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            required(found[name], found)
    return found


def link(each: Distribution, target: Path) -> None:
    """Put the files of an installed distribution into another environment, without the network."""
    for file in each.files or ():
        if ".." not in file.parts:  # a command
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # of a namespace, in two distributions
                (target / file).symlink_to(Path(str(each.locate_file(file))).resolve())


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short directory, for a socket's path has at most 107 bytes; other users reach what is in it."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    """The wheel that is built from the unpacked sdist."""
    (place / "source").mkdir()
    subprocess.run(["tar", "-xzf", build("build_sdist", ROOT, place), "-C", place / "source"], check=True)
    [source] = (place / "source").iterdir()
    return build("build_wheel", source, place)


@pytest.fixture(scope="module")
def run(place: Path, wheel: Path) -> Run:
    """``run("agentos", "ps")``: a command of the environment in which the wheel is installed."""
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=LONGEST)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "--disable-pip-version-check"]
    installed = subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)],
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert installed.returncode == 0, installed.stderr
    [packages] = (venv / "lib").glob("python3*/site-packages")
    [metadata] = packages.glob("agentos_kernel-*.dist-info")
    for each in required(Distribution.at(metadata), {}).values():
        link(each, packages)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, timeout=LONGEST)
    assert checked.returncode == 0, checked.stdout

    home = place / "home"
    home.mkdir()

    def run_command(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [venv / "bin" / command, *arguments],
            cwd=home,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run_command


def test_the_wheel_has_what_is_read_at_run_time_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {
        "agentos/userland/templates/echo/agent.py",
        "agentos/userland/web/static/index.html",
        "agentos_sdk/in_sandbox/agentos.py",
        "agentos_sdk/testing/pytest_plugin.py",
        "agentos/py.typed",
        *(f"agentos/shipped/{file}" for file in DEMOS),
    } <= {*names}
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {*ALIASES, "agentos", "agentos_sdk", "supervisors"}


def test_attacks_are_a_wheel_of_their_own_that_doctor_names(run: Run, place: Path) -> None:
    done = run("agentos", "doctor", "--attack")
    assert done.returncode == 1
    assert "pip install ./sdk/agentos_attacks in AgentOS's repository" in done.stderr

    names = zipfile.ZipFile(build("build_wheel", ROOT / "sdk" / "agentos_attacks", place)).namelist()
    held = {name for name in names if ".dist-info/" not in name}
    assert held == {str(file.relative_to(ROOT / "sdk")) for file in (ROOT / "sdk" / "agentos_attacks").rglob("*.py")}


def test_a_new_agent_runs_and_another_is_spawned(run: Run, place: Path) -> None:
    made = run("agentos", "new", "owl")
    assert made.returncode == 0, made.stderr
    options = ("--socket", str(place / "socket"))
    command = [
        str(place / "venv/bin/agentos"),
        "run",
        "owl/agentos.toml",
        *options,
        "--state-dir",
        str(place / "state"),
    ]
    home = place / "home"

    with subprocess.Popen(command, cwd=home, env=environment(home), stdout=subprocess.PIPE, text=True) as kernel:
        try:
            assert kernel.stdout is not None
            assert "ready, listening on" in kernel.stdout.readline()
            spawned = run("agentos", "spawn", "id", "--wait", *options, "--", "sh", "-c", "ls /home 2>&1; echo jailed")
            for line in kernel.stdout:
                if "owl | waiting for messages" in line:
                    break
            else:
                pytest.fail("the new agent has not begun")
            sent = run("agentos", "send", "owl", "hello", *options)
            layers = json.loads(run("agentos", "inspect", "owl", "--json", *options).stdout)["isolation"]
        finally:
            kernel.terminate()
            kernel.communicate(timeout=PATIENCE)

    assert (spawned.returncode, spawned.stdout.splitlines()[-1]) == (0, "jailed"), spawned.stderr
    assert "No such file or directory" in spawned.stdout
    assert sent.returncode == 0, sent.stderr
    assert layers["level"] == "standard"
    assert kernel.returncode == 0
