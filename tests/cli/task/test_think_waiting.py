"""What the line of a waiting question says, and which conversations are kept."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentos.userland.cli.common import Failed
from agentos.userland.cli.model import conversation as think_conversation
from agentos.userland.cli.model.conversation import Conversation, directory, load_conversation, save_conversation
from agentos.userland.cli.model.waiting import describe_waiting
from tests.support.runs.rows import each_row

OK = {"name": "openai", "model": "gpt-5-mini", "state": "ok", "until": None, "reason": None}
PAUSED = {**OK, "model": "slow", "state": "paused", "until": 1.0, "reason": "Slow down (429)"}


def waits(agent: str, position: int | None = None, state: str = "ready", model: str = "gpt-5-mini") -> dict[str, Any]:
    return {"agent": agent, "model": model, "position": position, "class": "normal", "state": state}


@each_row(
    ("line", "model", "text"),
    [
        ({}, None, "waiting for the model"),
        ({}, "slow", "waiting for slow"),
        ({"providers": [OK]}, None, "waiting for gpt-5-mini"),
        ({"waiting": [waits("a", 1), waits("me", 2)], "providers": [OK]}, None, "2nd of 2 in line for gpt-5-mini"),
        (
            {"waiting": [waits("me", None, "paused", "slow")], "providers": [OK, PAUSED]},
            "an-alias",
            "slow by openai is paused until",
        ),
        (
            {"waiting": [waits("me", None, "paused")], "providers": [OK, PAUSED]},
            None,
            "waiting: gpt-5-mini has had its requests or tokens of this minute",
        ),
        ({"waiting": [waits("me", None, "later")], "providers": [OK, PAUSED]}, None, "waiting to ask gpt-5-mini again"),
        ({"in_flight": [{"agent": "me", "model": "gpt-6"}]}, "fast", "waiting for the answer of gpt-6"),
    ],
)
def test_the_line_says_what_a_question_waits_for(line: dict[str, Any], model: str | None, text: str) -> None:
    assert text in describe_waiting(line, "me", model)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_a_terminal_goes_on_with_its_own_conversation_or_the_last_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = Conversation(system="mine"), Conversation(system="another's")
    save_conversation(mine)
    [file] = directory().iterdir()
    os.utime(file, (1.0, 1.0))
    with monkeypatch.context() as another:
        another.setattr(os, "getsid", lambda pid: -1)
        save_conversation(others)
    with monkeypatch.context() as new:
        new.setattr(os, "getsid", lambda pid: -2)

        assert load_conversation() == others
    assert load_conversation() == mine


def test_only_so_many_conversations_of_such_a_size_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(think_conversation, "MAX_BYTES", 1000)
    conversation = Conversation()
    for number in range(30):
        conversation.add(f"question {number}", [], "x" * 100)
        monkeypatch.setattr(os, "getsid", lambda pid, number=number: -number)
        save_conversation(conversation)

    assert len(list(directory().iterdir())) == think_conversation.MAX_FILES
    assert len(json.dumps(conversation.messages)) < 1100
    assert conversation.messages[0]["role"] == "user"
    assert conversation.messages[-2]["content"] == "question 29"


def test_a_file_that_is_no_conversation_is_an_error(home: Path) -> None:
    save_conversation(Conversation())
    [file] = directory().iterdir()
    for text in ('{"messages": 5, "else": 1}', "[" * 100_000):
        file.write_text(text)

        with pytest.raises(Failed, match="is no conversation: remove it"):
            load_conversation()


def test_a_directory_that_can_not_be_written_is_said_and_no_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "agentos").write_text("a file")

    save_conversation(Conversation())

    assert "not kept for -c" in capsys.readouterr().err
