"""A program that applies or undoes, is killed at each call that it makes, and each time looks at what has remained.

``killed.py PLACE apply|undo EVERY``; it prints how many calls a run makes. The children are real
processes: nothing that is buffered or held by them survives.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from agentos.services.snapshots.choice import Wanted
from agentos.services.snapshots.overlays import Outcome, Overlays

from .conftest import AGENT, Overlaid, Tree, fill, read_tree
from .test_apply import change_much

NAME = "w"


def run(overlays: Overlays, verb: str) -> Outcome:
    if verb == "undo":
        return overlays._undo(NAME, None)
    return overlays._apply(NAME, Wanted(overlays._diff(NAME, (), False).digest))


def count_calls(function: Callable[[], object], stop_at: int) -> int:
    """Run it, and kill this process at its call or return of that number; returns how many there were."""
    seen = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        if "snapshots" not in frame.f_code.co_filename and "private_files" not in frame.f_code.co_filename:
            return
        seen += 1
        if seen == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


def check_each(place: Path, verb: str, every: int) -> int:
    """Kill a run at each of its calls (with ``every`` 3, at each third), each time of a new project; returns how many
    calls it makes.
    """
    prepare(place / "whole", verb)
    before = read_tree(place / "whole" / "project")
    total = count_calls(lambda: run(Overlays(place / "whole" / "state"), verb), 0)
    after = read_tree(place / "whole" / "project")
    assert before != after, "it has changed something"
    for number in range(1, total + 1, every):
        here = place / str(number)
        prepare(here, verb)
        if (child := os.fork()) == 0:
            count_calls(lambda: run(Overlays(here / "state"), verb), number)  # noqa: B023 - it runs at once
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"it made fewer than {number} calls this time"
        check_remains(here, number, before, after, verb)
        shutil.rmtree(here)
    return total


def prepare(here: Path, verb: str) -> None:
    """A project and changes of all kinds, which are applied if they are to be undone."""
    (here / "project").mkdir(parents=True)
    (here / "state").mkdir(mode=0o700)
    fill(here / "project")
    overlays = Overlays(here / "state")
    opened = overlays._open(NAME, str(here / "project"), AGENT)
    assert opened is not None, "there is no snapshot to return to"
    change_much(Overlaid(here / "project", here / "state", overlays, NAME, Path(opened.upper)))
    if verb == "undo":
        run(overlays, "apply")


def check_remains(place: Path, number: int, before: Tree, after: Tree, verb: str) -> None:
    """Each file is as it was or whole, also before anything is finished; then all is done, or nothing."""
    for name, content in visible(read_tree(place / "project")).items():
        if content is not None:
            assert content in (before.get(name), after.get(name)), f"killed at {number}: {name} is {content!r}"
    overlays = Overlays(place / "state")
    assert overlays._finish_all() == [], number
    found = read_tree(place / "project")
    assert found in (before, after), f"killed at {number}: {found}"
    names = {name for name in os.listdir(place / "state" / "layers" / NAME) if name.startswith("r-")}
    record = overlays.require(NAME)
    assert names == {f"r-{one}" for one in record.runs}, f"killed at {number}: {names}, {record.runs}"
    if verb == "apply" and found == after:
        assert run(overlays, "undo").left == {}, number
        found = read_tree(place / "project")
        assert found == before, f"undone after it was killed at {number}: {found}"


def visible(tree: Tree) -> Tree:
    return {name: content for name, content in tree.items() if not name.startswith(".agentos-apply-")}


if __name__ == "__main__":
    print(check_each(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
