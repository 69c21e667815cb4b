"""Errors on a terminal are wrapped between words; in a pipe each is a line. JSON has one for each value."""

import json

import pytest

from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel

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
