"""Errors on a terminal are wrapped between words; in a pipe each is a line. JSON has one for each value."""

import json

import pytest
from click.testing import CliRunner

from agentos.userland.cli.common import MAX_ERROR_CHARS
from agentos.userland.cli.main import cli
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row

LONG = "an-agent-with-a-name-of-some-length-that-nobody-ever-has-spawned"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("kill", LONG), 1, f"agentos: no agent is called '{LONG}'"),
        (
            ("logs", "--follow", "--last-run"),
            2,
            "--follow and --last-run exclude each other: the last run is over",
        ),
        (("state", "set", "key", "value", "--ttl", LONG), 2, f"such as 90s or 1h, got '{LONG}'"),
    ],
)
def test_no_word_of_an_error_is_broken(kernel: Kernel, arguments: tuple[str, ...], status: int, words: str) -> None:
    terminal = Terminal(kernel, *arguments, columns=70)
    try:
        assert terminal.end() == status
    finally:
        terminal.close()

    lines = terminal.shown.replace("\r", "").splitlines()
    assert words in " ".join(lines)
    assert all(len(line) <= 70 for line in lines), lines


def test_in_a_pipe_an_error_is_one_line(agentos: Agentos) -> None:
    assert len(agentos("kill", LONG).stderr.splitlines()) == 1
    assert (
        agentos("logs", "--follow", "--last-run").stderr.splitlines()[-1].startswith("Error: --follow and --last-run")
    )
    assert agentos("state").returncode == 2


@each_row(
    "words",
    [
        ("check", "{}"),
        ("run", "{}"),
        ("new", "{}"),
        ("ps", "--socket", "{}"),
        ("new", "x", "--template", "{}"),
        ("{}",),
    ],
)
def test_an_error_quotes_a_value_of_any_length_in_part(words: tuple[str, ...]) -> None:
    failed = CliRunner().invoke(cli, [word.format("a b" * 2000) for word in words])

    assert failed.exit_code in (1, 2)
    assert max(map(len, failed.stderr.splitlines())) <= MAX_ERROR_CHARS
    assert "a ba" in failed.stderr


def test_what_there_is_none_of_is_an_error_and_nothing_is_printed(agentos: Agentos) -> None:
    replayed, listed = agentos("replay", ""), agentos("snapshots", "nobody")

    expected = "agentos: path: expected an absolute path or the name of a recording, got ''\n"
    assert (replayed.returncode, replayed.stdout, replayed.stderr) == (2, "", expected)
    assert (listed.returncode, listed.stdout) == (1, "")
    assert listed.stderr.startswith("agentos: no agent is called 'nobody'")


def test_events_as_json_are_a_line_each_on_a_terminal_too(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.emit_event("custom.one", {"a": 1})
    terminal = Terminal(kernel, "events", "--type", "custom.one", "--json", columns=1000)
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()

    [line] = terminal.shown.replace("\r", "").splitlines()
    assert json.loads(line)["data"] == {"a": 1}
