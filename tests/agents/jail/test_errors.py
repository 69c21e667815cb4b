"""What the caller is told where the kernel, not the agent, has reached a limit."""

import errno
import os

import pytest

from agentos.agents.jail.errors import explain
from agentos.agents.spec import AgentSpec
from agentos_sdk.errors import Unavailable


@pytest.mark.parametrize(("number", "fix"), [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max")])
def test_where_no_descriptor_is_left_the_fix_is_told(number: int, fix: str) -> None:
    told = explain(OSError(number, os.strerror(number), "/proc/7/ns/uts"), AgentSpec("a", command=("true",)))

    assert str(told).startswith(f"/proc/7/ns/uts: {os.strerror(number)}: ")
    assert fix in str(told)
    assert told.error is Unavailable
