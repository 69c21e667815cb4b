"""Text of agents on terminals, in files and in pipes."""

import hashlib
import subprocess
import sys
from typing import Any

import pytest

from agentos.userland.cli.output_text import printable_output
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, environment
from tests.support.runs.rows import each_row

HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b]0;title\x1b\\\x1b[2J\x1b[8mhidden\x9b31m\x90q\r\x08\u202eabc"


@each_row("sequence", ["\x1b[31m", "\x1b[m", "\x1b[0m", "\x1b[1;38;5;208;44m", "\x1b[38;2;1;22;255m", "\x1b[01;107m"])
def test_colours_pass_and_end_with_their_line(sequence: str) -> None:
    assert printable_output(f"a{sequence}b", coloured=True) == f"a{sequence}b\x1b[0m"
    assert "\x1b" not in printable_output(f"a{sequence}b", coloured=False)


@pytest.mark.parametrize("coloured", [True, False])
def test_all_other_sequences_are_escaped(coloured: bool) -> None:
    shown = printable_output(HOSTILE, coloured)

    assert shown.isprintable()
    assert shown.startswith(r"\x1b]52;c;cm0gLXJm\x07\x1b]0;title\x1b\\x1b[2J\x1b[8mhidden\x9b31m\x90q\r\x08\u202eabc")


@each_row("hidden", ["\u3164", "\u2800", "\u115f", "\uffa0", "\u034f", "\ufe00", "\U000e0100", "\u200b", "\ud800"])
def test_what_is_not_seen_is_escaped(hidden: str) -> None:
    """A name of JavaScript may consist of the first of these: `agentos diff` has to show it."""
    for coloured in (True, False):
        assert printable_output(f"\x1b[31mif (ok{hidden})", coloured).count(ascii(hidden)[1:-1]) == 1
        assert printable_output("if (ok) \u2714\ufe0f \u05d0", coloured) == "if (ok) \u2714\ufe0f \u05d0"


@each_row("sequence", ["\x1b[8m", "\x1b[5m", "\x1b[1;8m", "\x1b[?25l", "\x1b[3", "\x1b[38;5m", "\x1b[1000m"])
def test_only_colours_and_styles_are_sgr_that_passes(sequence: str) -> None:
    assert printable_output(sequence, coloured=True).isprintable()


def test_exec_shows_colours_on_a_terminal_even_in_pieces_and_escapes_the_rest(kernel: Kernel, agentos: Agentos) -> None:
    agentos("spawn", "painter", "--", "sleep", "1000")
    script = r"printf 'a\033['; sleep 0.2; printf '31mred\nplain\033]0;title\007\n\033[32mgreen\033[3'"

    shown = on_terminal(kernel, "exec", "painter", "--", "sh", "-c", script)

    assert shown == b"a\x1b[31mred\x1b[0m\nplain\\x1b]0;title\\x07\n\x1b[32mgreen\\x1b[3\x1b[0m"


def test_logs_show_colours_on_a_terminal_unless_the_user_wants_none(kernel: Kernel, agentos: Agentos) -> None:
    agentos("spawn", "crayon", "--wait", "--", "printf", r"\033[31mred\033[2J\n")

    assert b"| \x1b[31mred\\x1b[2J\x1b[0m\n" in on_terminal(kernel, "logs", "crayon")
    assert rb"| \x1b[31mred\x1b[2J" in on_terminal(kernel, "logs", "crayon", NO_COLOR="1")
    assert "| \x1b[31mred\x1b[2J\n" in agentos("logs", "crayon", "--raw").stdout


def test_exec_into_a_pipe_changes_no_byte(kernel: Kernel, agentos: Agentos) -> None:
    agentos("spawn", "copier", "--", "sleep", "1000")
    data = (HOSTILE + "\x1b[31mé\r\n\x00\n" * 30_000).encode()
    (kernel.place / "data").write_bytes(data)
    command = [
        sys.executable,
        "-m",
        "agentos",
        "exec",
        "--host",
        "--socket",
        kernel.socket,
        "--",
        "cat",
        str(kernel.place / "data"),
    ]

    done = subprocess.run(command, capture_output=True, env={**environment(kernel.place), "LC_ALL": "C"}, check=True)

    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def on_terminal(kernel: Kernel, *command: str, **env: Any) -> bytes:
    """All that a command shows on a terminal."""
    terminal = Terminal(kernel, *command, **env)
    try:
        terminal.end()
    finally:
        terminal.close()
    return terminal.data.replace(b"\r\n", b"\n")
