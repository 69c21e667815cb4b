"""An agent crashes where core_pattern is a pipe: what it had in memory goes to nobody."""

import json
import os
import sys

from tests.support.guest import need_guest
from tests.tools import cgroup2_vm


def test_a_crash_is_told_to_no_program_outside() -> None:
    need_guest()
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    job = cgroup2_vm.Job([sys.executable, "-m", "tests.security.piped_core"], env=env)

    ended = cgroup2_vm.run(job)

    assert ended.code == 0, ended.out + ended.err
    told = json.loads(ended.out)
    assert told.pop("with a limit of 0") == ["zero"], "a limit of 0 holds nothing back"
    assert told == {"exec": [], "fast": [], "command": []}
