"""``agentos new``: what each template makes is right, runs at once, and passes its own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.agents import spec
from agentos.userland.cli.kernel.new import PLACEHOLDER, RESERVED, RESERVED_PREFIX, templates
from agentos.userland.cli.main import cli
from tests.support.wire import PATIENCE

PLUGIN = "agentos_sdk.testing.pytest_plugin"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("template", templates())
@pytest.mark.usefixtures("kernels")
def test_what_a_template_makes_is_right_and_passes_its_tests(template: str) -> None:
    made = CliRunner().invoke(cli, ["new", "night-owl", "--template", template])

    assert made.exit_code == 0, made.output
    written = {path.name: path.read_text() for path in Path("night-owl").iterdir()}
    assert {"agentos.toml", "README.md"} < written.keys()
    assert not [name for name, text in written.items() if PLACEHOLDER in text]
    assert all(f"night-owl/{name}\n" in made.output for name in written)
    checked = CliRunner().invoke(cli, ["check", "night-owl/agentos.toml"])
    assert checked.output.startswith("night-owl/agentos.toml: fine: ")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of our own tests take two thirds of a start
    options = ["-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", "-W", "error"]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd="night-owl",
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "skipped" not in tested.stdout


def test_a_directory_with_files_is_left_as_it_is() -> None:
    Path("owl").mkdir()
    Path("owl/agent.py").write_text("mine")

    refused = CliRunner().invoke(cli, ["new", "owl"])

    assert (refused.exit_code, os.listdir("owl"), Path("owl/agent.py").read_text()) == (1, ["agent.py"], "mine")
    assert "owl isn't empty, and is left as it is" in refused.output


@pytest.mark.parametrize("name", ["two words", "42", "-", "ö", "/"])
def test_a_name_that_no_agent_can_have_is_refused(name: str) -> None:
    refused = CliRunner().invoke(cli, ["new", "--", name])

    assert (refused.exit_code, os.listdir()) == (1, [])
    assert "NAME: expected letters, digits" in refused.output


def test_the_reserved_names_are_those_of_the_kernel() -> None:
    assert (RESERVED, RESERVED_PREFIX) == (spec.RESERVED, spec.RESERVED_PREFIX)


@pytest.mark.parametrize("name", ["root", "Kernel", "mcp.files"])
def test_a_name_that_the_kernel_keeps_is_refused(name: str) -> None:
    refused = CliRunner().invoke(cli, ["new", name])

    assert (refused.exit_code, os.listdir()) == (1, [])
    assert "the kernel keeps these for itself" in refused.output


def test_a_directory_with_a_space_is_quoted_in_the_next_command() -> None:
    Path("two words").mkdir()

    assert "`cd 'two words/owl'`" in CliRunner().invoke(cli, ["new", "two words/owl"]).output


def test_a_path_that_cannot_be_made_is_said() -> None:
    refused = CliRunner().invoke(cli, ["new", "no/such/owl"])

    assert (refused.exit_code, refused.output) == (1, "agentos: no/such/owl: No such file or directory\n")
