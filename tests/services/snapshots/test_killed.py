"""kill -9 at any call of an apply or an undo leaves each file as it was or whole, and a record to finish by."""

import subprocess
import sys
from pathlib import Path

import pytest

EVERY = 97  # of thousands of calls; `python -m tests.services.snapshots.killed PLACE VERB 1` takes minutes


@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_a_run_that_is_killed_is_finished_or_has_changed_nothing(place: Path, verb: str) -> None:
    command = [sys.executable, "-m", "tests.services.snapshots.killed", str(place), verb, str(EVERY)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10 * EVERY
