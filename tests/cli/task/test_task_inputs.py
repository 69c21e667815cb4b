"""What is read of a task's directory before the task, where an agent has put something else in a file's place."""

import os
from pathlib import Path

import pytest

from agentos.userland.task.images import name_images
from agentos.userland.task.repository import BadDirectory, read_notes


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink", "loop"])
def test_notes_that_are_no_file_are_left_out_and_said(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "AGENTS.md"
    match kind:
        case "directory":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
        case "symlink":
            place.symlink_to("/etc/passwd")
        case _:
            place.symlink_to(place)
    before = os.listdir("/proc/self/fd")

    found = read_notes(str(tmp_path))

    assert found.text == ""
    assert found.said.startswith(f"{place} is not read: ")
    assert os.listdir("/proc/self/fd") == before


def test_an_image_that_a_program_replaces_keeps_nothing_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a.png")
    monkeypatch.setattr(os.path, "isfile", lambda path: True)  # it was a file when it was looked at

    with pytest.raises(BadDirectory, match=r"@a\.png: expected an image"):
        name_images("Look at @a.png", str(tmp_path))
