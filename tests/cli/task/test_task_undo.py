"""Undo of a task of an earlier release: it restores what the task changed, and leaves what the user did."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.userland.cli.common import Failed
from agentos.userland.cli.task.undo import check_former
from agentos.userland.task import former
from agentos.userland.task.former import Change, UndoError, undo
from agentos.userland.task.records import TaskNote

NOBODY = 65534  # uid and gid
PATHS = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f")


class Step(NamedTuple):
    what: str
    path: str


kinds = st.sampled_from(["write", "write", "remove", "mkdir"])
steps = st.lists(st.builds(Step, kinds, st.sampled_from(PATHS)), max_size=5)


def save(top: Path, place: Path) -> None:
    """Save a directory as earlier releases did before a task."""
    place.mkdir()
    shutil.copytree(top, place / former.COPIES, symlinks=True)
    former.write_listing(place / former.LISTING, former.list_files(str(top)))


def note_end(top: Path, place: Path) -> None:
    former.write_listing(place / former.ENDED, former.list_files(str(top)))


def do(top: Path, who: str, todo: Sequence[Step]) -> None:
    """Make the steps that are possible; each file's content is new, and says who wrote it."""
    for number, step in enumerate(todo):
        path = top / step.path
        if not path.parent.is_dir() or (path.is_dir() and step.what != "remove"):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if step.what == "mkdir":
            path.mkdir()
        elif step.what == "write":
            path.write_text(f"{who} {number}")


def contents(top: Path, who: str) -> dict[str, str]:
    found = {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}
    return {path: text for path, text in found.items() if text.startswith(who)}


@settings(max_examples=40)  # each writes some twenty files
@given(before=steps, task=steps, users=st.lists(steps, min_size=1, max_size=3))
def test_undo_restores_what_the_task_did_and_leaves_what_the_user_did(
    before: list[Step], task: list[Step], users: list[list[Step]]
) -> None:
    with tempfile.TemporaryDirectory() as made:
        top, place = Path(made, "work"), Path(made, "saved")
        top.mkdir()
        do(top, "before", before)
        save(top, place)
        do(top, "task", task)
        note_end(top, place)

        for number, steps in enumerate(users):
            do(top, f"user {number}", steps)
            mine = contents(top, "user")
            undo(str(top), place)
            assert contents(top, "user") == mine
        assert contents(top, "task") == {}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory, saved as before a task in ``saved`` beside it."""
    work = tmp_path / "work"
    (work / "closed").mkdir(parents=True)
    (work / "closed" / "file").write_text("as it was")
    (work / "a").write_text("as it was")
    (work / "closed").chmod(0o500)
    save(work, tmp_path / "saved")
    return work


def test_a_read_only_directory_is_restored_with_its_file_and_times(work: Path) -> None:
    before = os.stat(work / "closed" / "file")
    (work / "closed").chmod(0o700)
    (work / "closed" / "file").write_text("as it is!")
    os.utime(work / "closed" / "file", ns=(before.st_mtime_ns, before.st_mtime_ns))
    note_end(work, work.parent / "saved")

    undone = undo(str(work), work.parent / "saved")

    assert undone.done == [Change("changed", "closed"), Change("changed", "closed/file")]
    assert (work / "closed" / "file").read_text() == "as it was"
    assert os.stat(work / "closed" / "file").st_mtime_ns == before.st_mtime_ns
    assert os.stat(work / "closed").st_mode & 0o777 == 0o500


def test_undo_keeps_what_it_replaces_where_the_end_of_the_task_is_not_known(work: Path) -> None:
    (work / "a").write_text("mine, perhaps")
    (work / "d").mkdir()
    (work / "d/new").write_text("this, too")

    undone = undo(str(work), work.parent / "saved")

    kept = Path(undone.kept)
    assert ((kept / "a").read_text(), (kept / "d/new").read_text()) == ("mine, perhaps", "this, too")
    assert ((work / "a").read_text(), (work / "d").exists()) == ("as it was", False)


def test_what_an_agent_did_in_a_copy_needs_no_undo_unless_it_was_applied(work: Path) -> None:
    saved = work.parent / "saved"
    (saved / former.COPY).mkdir()
    (work / "a").write_text("applied, or the user's")
    note_end(work, saved)

    assert undo(str(work), saved).done == []
    (saved / former.APPLIED).touch()
    assert undo(str(work), saved).done == [Change("changed", "a")]


def test_a_task_of_an_earlier_release_goes_on_in_place_unless_it_had_a_copy(work: Path) -> None:
    note = TaskNote("task-1", "x", str(work), str(work.parent / "saved"))

    assert "what it changes from now on can't be undone" in check_former(note)
    (work.parent / "saved" / former.COPY).mkdir()
    with pytest.raises(Failed, match="begin a new task"):
        check_former(note)


def test_undo_does_not_follow_a_link_that_the_agent_made(work: Path) -> None:
    saved, other = work.parent / "saved", work.parent / "other"
    other.mkdir()
    (other / "file").write_text("other")
    (work / "closed").chmod(0o700)
    shutil.rmtree(work / "closed")
    (work / "closed").symlink_to(other)
    note_end(work, saved)

    undo(str(work), saved)

    assert ((other / "file").read_text(), (work / "closed/file").read_text()) == ("other", "as it was")
    work.rename(work.parent / "moved")
    work.symlink_to("other")
    with pytest.raises(UndoError, match="work"):
        undo(str(work), saved)


def test_directories_in_each_other_without_end_are_undone(
    work: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = ["sh", "-ec", 'chmod -R u+rwX "$1"; rm -rf "$1"', "sh", tmp_path]  # pytest can't, if this fails
    request.addfinalizer(partial(subprocess.run, remove, check=True))
    monkeypatch.setattr(former, "MAX_DEPTH", 20)
    fd = os.open(work, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    note_end(work, tmp_path / "saved")

    undo(str(work), tmp_path / "saved")

    assert sorted(os.listdir(work)) == ["a", "closed"]


def test_files_that_are_no_longer_kept_or_can_not_be_read_are_named(work: Path) -> None:
    (work.parent / "saved" / "files.json").write_text('{"a": [1]}')

    with pytest.raises(UndoError, match=r"files\.json: the saved files can't be read"):
        undo(str(work), work.parent / "saved")
    with pytest.raises(UndoError, match="no longer kept"):
        undo(str(work), work.parent / "none")


UNDO_AS_ORDINARY_USER = f"""
import os
from pathlib import Path
from agentos.userland.task.former import undo
from tests.cli.task.test_task_undo import note_end, save
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*[{NOBODY}] * 3)
    os.setresuid(*[{NOBODY}] * 3)
work, saved = Path("work"), Path("saved").absolute()
(work / "closed").mkdir(); (work / "closed/file").write_text("as it was"); (work / "closed").chmod(0o500)
save(work, saved)
(work / "closed").chmod(0o700); (work / "closed/file").write_text("new"); (work / "closed").chmod(0o500)
(work / "hidden/deep").mkdir(parents=True); (work / "hidden/deep").chmod(0); (work / "hidden").chmod(0)
work.chmod(0o500)
note_end(work, saved)
print(*(change.path for change in undo(os.path.abspath("work"), saved).done))
"""


def test_an_agent_can_not_prevent_undo_by_permissions() -> None:
    """Without root the agent has the user's uid."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made, "work").mkdir()
        if os.geteuid() == 0:
            for path in (made, f"{made}/work"):
                os.chown(path, NOBODY, NOBODY)

        done = subprocess.run(
            [sys.executable, "-c", UNDO_AS_ORDINARY_USER],
            cwd=made,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.stdout == "closed/file hidden hidden/deep\n", done.stderr
        assert os.listdir(f"{made}/work") == ["closed"]
        assert Path(made, "work/closed/file").read_text() == "as it was"
