"""The kernel's log on a terminal: written by a thread, whatever the terminal does."""

import logging
import os
import sys
import threading
from io import TextIOWrapper

import pytest

from agentos.kernel.internal_errors import BugLog
from agentos.userland.cli.console import MAX_LINES, Console


def test_internal_errors_are_logged_without_waiting_for_a_terminal_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()  # takes 64 KiB, and then whoever writes waits
    said = list[bytes]()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as end, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", TextIOWrapper(end, write_through=True))
        reader = threading.Thread(target=lambda: said.extend(source))
        with Console("info") as console:
            for _ in range(2 * MAX_LINES):
                console.say("x" * 100)
            BugLog().internal(ValueError("dropped"), "EXEC")
            reader.start()
            while not any(b"were not shown" in line for line in said):
                reader.join(0.01)
            told = BugLog().internal(ValueError("odd"), "EXEC")
        end.close()
        reader.join()

    reference = str(told).split("look for ")[1].split()[0]
    [line] = [line for line in said if reference.encode() in line]  # nothing is lost at the end
    assert b"in EXEC: ValueError: 'odd'" in line


def test_a_line_break_in_an_error_does_not_begin_a_message_of_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    with Console("info"):
        logging.getLogger("agentos.agents").info("%s: %s", "job", "/tmp/x\nroot: given up\r\x1b[1mready")

    first, further, last = (line.partition("kernel | ")[2] for line in capsys.readouterr().out.splitlines())
    assert (first, further) == ("job: /tmp/x", "  | root: given up")
    assert last == "  | \\x1b[1mready"


def test_the_log_on_disk_gets_messages_that_are_not_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with Console("warning"):
        logging.getLogger("agentos.agents").info("job: exit status 0")

    assert capsys.readouterr().out == ""
    assert caplog.messages == ["job: exit status 0"]
