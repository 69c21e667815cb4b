"""``agentos init``, and the file that it writes."""

import re
import tomllib
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from agentos.config.load import load
from agentos.config.schema import AgentTable, KernelSettings, RootTable
from agentos.config.tables.llm import LLMTable
from agentos.userland.cli.kernel.init import TEMPLATE
from agentos.userland.cli.main import cli
from tests.cli.conftest import Agentos
from tests.conftest import OwnKernel

TABLES = {"kernel": KernelSettings, "llm": LLMTable, "supervisor": RootTable, "agents": AgentTable}


def test_what_it_writes_is_checked_and_run_without_a_word_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_kernel: OwnKernel
) -> None:
    monkeypatch.chdir(tmp_path)

    written, checked = CliRunner().invoke(cli, ["init"]), CliRunner().invoke(cli, ["check"])

    assert written.output.startswith("agentos.toml written: "), written.output
    assert checked.output.startswith("agentos.toml: fine: 1 agent under 1 supervisor\n")
    own_kernel(Path("agentos.toml").read_text()).wait_line(r"clock \| .*20\d\d")


def test_an_empty_file_is_filled_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agentos.toml").touch()
    before = Path("agentos.toml").stat().st_ino

    written = CliRunner().invoke(cli, ["init"])

    assert (written.exit_code, Path("agentos.toml").read_text()) == (0, TEMPLATE)
    assert Path("agentos.toml").stat().st_ino == before  # by which it is read-only to an agent that works there


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agentos.toml").write_text("[kernel]\n")

    refused = CliRunner().invoke(cli, ["init"])

    assert (refused.exit_code, Path("agentos.toml").read_text()) == (1, "[kernel]\n")
    assert "agentos.toml exists, and is left as it is" in refused.output


def test_another_file_can_be_named_and_a_directory_that_is_not_there_is_said(agentos: Agentos, tmp_path: Path) -> None:
    written, refused = agentos("init", str(tmp_path / "other.toml")), agentos("init", "/no/such/agentos.toml")

    assert f"agentos run {tmp_path}/other.toml" in written.stdout
    assert load(tmp_path / "other.toml").root.children
    assert (refused.returncode, refused.stderr) == (1, "agentos: /no/such/agentos.toml: No such file or directory\n")


def test_every_example_in_it_is_a_key_with_a_value() -> None:
    table, examples = "", 0
    for line in TEMPLATE.splitlines():
        if found := re.fullmatch(r"\[+([\w.]+)\]+", line):
            table = found[1]
        elif re.match(r"# \w+ = ", line):
            [(key, _)] = tomllib.loads(line.removeprefix("# ")).items()
            assert key in attrs.fields_dict(TABLES[table]), line
            examples += 1
    assert examples > 10
    assert max(map(len, TEMPLATE.splitlines())) <= 120
