"""What is said about recordings: their ends, and what of their lives is kept."""

import json
from pathlib import Path

import pytest

from agentos.llm.cassettes.recorded_question import MASKS
from agentos.recordings.format import Life, Manifest
from agentos.recordings.reader import read_recording
from agentos.userland.cli.recordings.calls import trace_calls
from agentos.userland.cli.recordings.recordings import show_recording
from agentos.userland.recordings.calls import describe_end
from tests.recordings.written import line, write_recording
from tests.support.runs.rows import each_row

LIVED, LIVES = Life("a/1", "a", 1.0, ended=2.0, exit="exit status 1"), Life("a/1", "a", 1.0)


@each_row(
    ("manifest", "said"),
    [
        (Manifest(ended=3.0, lives=[LIVES, LIVED]), "exit status 1"),
        (Manifest(lives=[LIVES]), "goes on, or ended with the kernel"),
        (Manifest(ended=3.0, lives=[LIVES]), "stopped by the operator"),
        (Manifest(ended=3.0, reason="the recording is full", lives=[LIVED, LIVES]), "the recording is full"),
    ],
)
def test_a_recording_says_how_it_ended(manifest: Manifest, said: str) -> None:
    assert describe_end(manifest) == said


def test_a_life_is_shown_with_what_it_went_on_with_and_what_of_its_files_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    life = Life("coder/1", "coder", 1.0, lost="a command has run in the background", resumed="coder-0", answers=2)
    found = read_recording(write_recording(tmp_path / "r", [line(1, "NOOP")], lives=[life]))

    show_recording(found, None, 9, contents=False, as_json=False)
    text = capsys.readouterr().out
    show_recording(found, None, 9, contents=False, as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)["lives"]

    assert "what its commands changed isn't kept: a command has run in the background\n" in text
    assert "went on after a crash with 2 answers of coder-0\n" in text
    assert (shown["lost"], shown["resumed"], shown["answers"]) == (life.lost, life.resumed, life.answers)
    assert (shown["failed"], shown["start"]) == (False, None)


def test_a_life_has_its_last_calls_and_questions_the_numbers_among_those_of_all_lives(tmp_path: Path) -> None:
    lines = [line(1, life="b/1"), line(2, life="a/1"), line(3, "NOOP", life="a/1")]
    lines.append(line(4, life="a/1", reply={"success": True, "usage": {"input": 7, "thinking": 2}}))
    found = read_recording(write_recording(tmp_path / "r", lines, lives=[LIVES, Life("b/1", "b", 1.0)]))

    traced = trace_calls(LIVES, found.calls(), 2)

    thinks = [one.think for one in traced.calls.values()]
    assert [think and (think.number, think.tokens_in, think.tokens_out) for think in thinks] == [None, (3, 7, 2)]
    assert traced.left_out == 1


def test_a_recording_lists_the_masks_that_a_replay_of_it_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_recording(write_recording(tmp_path / "r", [line(1, "NOOP")], masks=["ticket-\\d+"]))

    show_recording(found, None, 9, contents=False, as_json=False)
    text = capsys.readouterr().out
    show_recording(found, None, 9, contents=False, as_json=True)
    masks = json.loads(capsys.readouterr().out)["masks"]

    assert f"masks of a replay: {', '.join(MASKS)}; its own: 'ticket-\\\\d+'\n" in text
    assert masks == {"built_in": [*MASKS], "own": ["ticket-\\d+"]}
