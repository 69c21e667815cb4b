"""An agent crashes where core_pattern is a pipe: what it had in memory goes to nobody."""

import json
import sys

from tests.support.guest import RunInGuest


def test_a_crash_is_told_to_no_program_outside(guest: RunInGuest) -> None:
    ended = guest(sys.executable, "-m", "tests.security.piped_core", alone=True)

    assert ended.code == 0, ended.out + ended.err
    told = json.loads(ended.out)
    assert told.pop("with a limit of 0") == ["zero"], "a limit of 0 holds nothing back"
    assert told == {"exec": [], "fast": [], "command": []}
