"""A kernel that a test has started doesn't outlive the process of the test."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernel import Process, descendants, stat_of, until

ROOT = Path(__file__).resolve().parents[2]
TEST = """
from tests.support.kernel import Kernel
kernel = Kernel(execute={execute})
kernel.wait_ready()
print(kernel.pid, kernel.place, flush=True)
input()
"""


@pytest.mark.parametrize("execute", [False, True], ids=["forked", "executed"])
def test_a_test_process_that_is_killed_takes_its_kernel_along(execute: bool) -> None:
    test_code = TEST.format(execute=execute)
    with subprocess.Popen([sys.executable, "-c", test_code], cwd=ROOT, stdin=-1, stdout=-1, text=True) as test:
        assert test.stdout is not None
        number, place = test.stdout.readline().split()
        found = stat_of(int(number))
        assert found is not None
        kernel = Process(int(number), found[2])
        assert kernel.lives
        family = [kernel, *descendants(kernel.pid)]

        test.send_signal(signal.SIGKILL)

        until(lambda: not any(one.lives for one in family), "the kernel and all that it started are gone")
    shutil.rmtree(place)
