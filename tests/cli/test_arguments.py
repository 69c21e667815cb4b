"""Arguments whose bytes are no text, as file names may be: each command says which it can't use."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.common import Failed
from agentos.userland.cli.main import cli
from agentos.userland.cli.recordings.fork import choose_answer
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared
from tests.support.runs.rows import each_row

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
DEEP = '{"allow": ' + "[" * 100_000
OF_JSON = [
    ("call", "LIST", DEEP),
    ("send", "any", DEEP),
    ("state", "set", "key", DEEP),
    ("spawn", "any", "--permissions", DEEP, "--", "true"),
]
OF_FILES = [
    ("spawn", "any", "--permissions", "FILE", "--", "true"),
    ("mcp", "token", "any", "--permissions", "FILE"),
]
LONG = "9" * 5000
OF_NUMBERS = [
    *(
        ("inspect",),
        ("kill",),
        ("pause",),
        ("logs",),
        ("trace",),
        ("mail",),
        ("metrics",),
        ("cp", "{}:/a"),
        ("send", "{}", "x"),
    ),
    *(("audit", "--agent"), ("audit", "summary"), ("audit", "export", "--agent"), ("permissions", "suggest")),
    *(("permissions", "explain", "{}", "NOW"), ("permissions", "explain", "any", "KILL"), ("exec", "{}", "true")),
    *(("spawn", "any", "--limit", "memory={}", "--", "true"), ("replay", "any@{}"), ("fork", "any@{}", "--yes")),
    *(("events", "--agent"), ("approve",), ("rollback", "any"), ("call", "0x{}")),
]
TOML = '[llm]\nprovider = "offline"\n'


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(TOML) as started:
        yield started


@pytest.fixture
def environed(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process are the kernel's operator's."""
    for name, value in {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environed")
def test_an_argument_that_is_no_text_is_named(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("environed")
def test_what_is_nested_too_deeply_or_has_no_end_is_an_error_in_a_line(tmp_path: Path) -> None:
    files = {"deep.json": DEEP, "deep.toml": "allow = " + "[" * 100_000}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for words in OF_JSON:
        refuse(words, "nested ")
    for words in OF_FILES:
        for name, said in (("/dev/zero", "expected at most 256 KiB"), ("deep.json", "nested too deeply")):
            file = str(tmp_path / name)
            refuse(tuple(word.replace("FILE", file) for word in words), f"{file}: {said}")
    refuse((*OF_FILES[1][:-1], str(tmp_path / "deep.toml")), "deep.toml: nested too deeply")


@pytest.mark.usefixtures("environed")
@each_row("digits", [LONG, "9" * 19, "\u0663" * 5000])
def test_a_number_of_any_length_is_refused_in_a_line(digits: str) -> None:
    for words in OF_NUMBERS:
        put = tuple(word.replace("{}", digits) for word in words)
        done = CliRunner().invoke(cli, put if put != words else (*words, digits))

        assert isinstance(done.exception, SystemExit), (words, done.exception)
        assert done.exit_code in (1, 2), (words, done.output)
        assert "can't use what the kernel answered" not in done.output, (words, done.output[:300])


def refuse(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, words)

    assert (done.exit_code, said in done.output) == (1, True), (words[:2], done.output, done.exception)
    assert len(done.output.splitlines()) == 1


@each_row(
    "edit, call, said",
    [
        ("/dev/zero", (), "/dev/zero: expected at most 4 MiB"),
        ("/proc/self/cmdline", (), "/proc/self/cmdline: not JSON: "),
        (None, ("done", DEEP), "--call: ARGS: nested too deeply"),
    ],
)
def test_another_answer_without_an_end_or_too_deep_is_refused(edit: str | None, call: Sequence[str], said: str) -> None:
    with pytest.raises(Failed, match=said):
        choose_answer(edit, None, call)
