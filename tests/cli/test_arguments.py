"""Arguments whose bytes are no text, as file names may be: each command says which it can't use."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import environment

BROKEN = os.fsdecode(b"x\xffy")
OF_A_KERNEL = [
    ("call", "LIST", f'{{"name": "{BROKEN}"}}'),
    ("mcp", "add", "any", "--", BROKEN),
    ("mcp", "add", "any", "--domain", BROKEN, "--", "true"),
]
OF_A_DIRECTORY = [
    ("trace", BROKEN),
    ("audit", "--agent", BROKEN),
    ("audit", "summary", BROKEN),
    ("audit", "export", "--agent", BROKEN),
    ("permissions", "suggest", BROKEN),
    ("mcp", "token", BROKEN),
]
TOML = '[llm]\nprovider = "offline"\n'


def test_an_argument_that_is_no_text_is_named(own_kernel: OwnKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = own_kernel(TOML)
    for name, value in {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}.items():
        monkeypatch.setenv(name, value)
    of_a_directory = [(*words, "--state-dir", str(kernel.state_dir)) for words in OF_A_DIRECTORY]
    for words in (*OF_A_KERNEL, *of_a_directory):
        monkeypatch.setattr(sys, "argv", ["agentos", *words])
        place = next(number for number, word in enumerate(words, 1) if "\udcff" in word)

        done = CliRunner().invoke(cli, words)

        assert done.exit_code == 1, (words, done.output)
        assert f"agentos: argument {place}, " in done.output, (words, done.output)
        assert "expected text in UTF-8" in done.output
    with kernel.client() as client:
        assert Path(client.status()["config"]).read_text() == TOML


def test_a_files_name_that_is_no_text_is_printed_with_escapes(tmp_path: Path) -> None:
    done = run_agentos(["init", BROKEN], tmp_path, environment(tmp_path))
    assert (done.returncode, "x\\udcffy written" in done.stdout) == (0, True), done
