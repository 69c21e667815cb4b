"""Undo after any changes by the task and the user in turn: it restores the task's, and leaves the user's."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.userland.task.directory import TaskDirectory

PATHS = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f")


class Step(NamedTuple):
    what: str
    path: str


kinds = st.sampled_from(["write", "write", "remove", "mkdir"])
steps = st.lists(st.builds(Step, kinds, st.sampled_from(PATHS)), max_size=5)
turns = st.lists(st.tuples(steps, steps, st.booleans()), min_size=1, max_size=3)  # task, user, whether undo follows


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
@given(before=steps, turns=turns, last=steps)
def test_undo_restores_what_the_task_did_and_leaves_what_the_user_did(
    before: list[Step], turns: list[tuple[list[Step], list[Step], bool]], last: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", f"{place}/state")
        top = Path(place, "work")
        top.mkdir()
        do(top, "before", before)
        saved = TaskDirectory.save(str(top), with_copy=False)
        for number, (tasks, users, is_undone) in enumerate(turns):
            do(top, f"task {number}", tasks)
            saved.note_end()
            do(top, f"user {number}", users)
            mine = contents(top, "user")
            if is_undone:
                saved.undo()
                assert contents(top, "user").items() >= mine.items()  # it may restore more of the user's
            saved.note_start()
            assert mine.keys().isdisjoint(change.path for change in saved.changes())

        do(top, "task last", last)
        saved.note_end()
        saved.undo()

        assert contents(top, "user").items() >= mine.items()  # it may restore more of the user's
        assert contents(top, "task") == {}
        assert saved.changes() == []
