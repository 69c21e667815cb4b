"""What a caller is told of a command that could not begin."""

import errno

import pytest

from agentos.agents.commands.run import _start_errors
from agentos.sandbox.errors import StepFailed
from agentos_sdk.errors import CallError
from tests.support.runs.rows import each_row

NO_SHELL = "/bin/bash: No such file or directory"


@each_row(
    ("step", "number", "text", "jailed", "code", "told"),
    [
        ("Execute", errno.EAGAIN, "", True, "quota_exceeded", "w has used up its processes (max_pids)"),
        ("Clone", errno.EAGAIN, "", True, "quota_exceeded", "w has used up its processes (max_pids)"),
        ("Execute", errno.ENOENT, NO_SHELL, True, "unavailable", "a line for the shell is run by /bin/bash"),
        ("Join mnt", errno.EPERM, "setns", True, "unavailable", "no way into the jail of w: Join mnt: setns"),
        ("Join mnt", errno.EPERM, "setns", False, "unavailable", "w: Join mnt: setns"),
    ],
)
def test_the_step_that_failed_decides_what_is_told(
    step: str, number: int, text: str, jailed: bool, code: str, told: str
) -> None:
    with pytest.raises(CallError) as failed, _start_errors("w", jailed, None):
        raise StepFailed(step, number, text)

    assert (failed.value.code, str(failed.value)[: len(told)]) == (code, told)
