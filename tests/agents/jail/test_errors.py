"""What the caller is told where the kernel, not the agent, has reached a limit."""

import errno
import os

import pytest

from agentos.agents.jail.errors import explain
from agentos.agents.spec import AgentSpec
from agentos.sandbox.errors import StepFailed
from agentos_sdk.errors import IsolationUnavailable, Unavailable


@pytest.mark.parametrize(("number", "fix"), [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max")])
def test_where_no_descriptor_is_left_the_fix_is_told(number: int, fix: str) -> None:
    told = explain(OSError(number, os.strerror(number), "/proc/7/ns/uts"), AgentSpec("a", command=("true",)))

    assert str(told).startswith(f"/proc/7/ns/uts: {os.strerror(number)}: ")
    assert fix in str(told)
    assert told.error is Unavailable


def test_a_directory_that_no_overlay_can_show_is_named_with_what_to_do() -> None:
    spec = AgentSpec("a", command=("true",), workspace="/srv/project", workspace_mode="overlay")
    failure = StepFailed("MountOverlay /workspace", errno.EINVAL, "mount overlay: Invalid argument")

    told = explain(failure, spec)

    assert told.error is IsolationUnavailable
    assert str(told).startswith("workspace /srv/project: it can't be the lower layer of an overlay: mount overlay")
    assert str(told).endswith('say mode = "direct"')
