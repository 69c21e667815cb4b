"""Let other users into a test's directory, and change no directory that isn't pytest's."""

from pathlib import Path

import pytest


def let_in(place: Path, base: Path) -> None:
    """Let all users enter ``place``; ``base`` is pytest's directory of this process.

    The test fails where that would take another mode of a directory above pytest's, such as a home.
    """
    run = base.parent if base.name.startswith("popen-") else base  # of all processes of this run
    top = run.parent if run.parent.name.startswith("pytest-of-") else run
    for path in (place, *place.parents):
        mode = path.stat().st_mode & 0o7777
        if top in (path, *path.parents):
            path.chmod(mode | 0o055)
        elif not mode & 0o001:
            pytest.fail(f"{path}: other users can't enter it: this test needs another --basetemp than {run}")
