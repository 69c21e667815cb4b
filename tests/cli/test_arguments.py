"""Arguments whose bytes are no text, as file names may be: each command says which it can't use."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel

BROKEN = os.fsdecode(b"x\xffy")
OF_A_FILE = [("mcp", "add", "any", "--", BROKEN), ("mcp", "add", "any", "--domain", BROKEN, "--", "true")]
OF_A_DIRECTORY = [
    ("trace", BROKEN),
    ("audit", "--agent", BROKEN),
    ("audit", "summary", BROKEN),
    ("audit", "export", "--agent", BROKEN),
    ("permissions", "suggest", BROKEN),
    ("mcp", "token", BROKEN),
]


def test_an_argument_that_is_no_text_is_named(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTOS_SOCKET", raising=False)
    (tmp_path / "agentos.toml").touch()
    of_a_directory = [(*words, "--state-dir", str(kernel.state_dir)) for words in OF_A_DIRECTORY]
    of_a_kernel = ("call", "LIST", f'{{"name": "{BROKEN}"}}', "--socket", kernel.socket)
    for words in (of_a_kernel, *OF_A_FILE, *of_a_directory):
        monkeypatch.setattr(sys, "argv", ["agentos", *words])
        place = next(number for number, word in enumerate(words, 1) if "\udcff" in word)

        done = CliRunner().invoke(cli, words)

        assert done.exit_code == 1, (words, done.output)
        assert f"agentos: argument {place}, " in done.output, (words, done.output)
        assert "expected text in UTF-8" in done.output
        assert (tmp_path / "agentos.toml").read_text() == ""


def test_a_files_name_that_is_no_text_is_printed_with_escapes(agentos: Agentos) -> None:
    done = agentos("init", BROKEN)
    assert (done.returncode, "x\\udcffy written" in done.stdout) == (0, True), done
