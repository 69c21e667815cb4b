"""What the caller is told where the kernel, not the agent, has reached a limit."""

import errno
import os
from collections.abc import Callable

import pytest

from agentos.agents.commands.run import _start_errors
from agentos.agents.jail import errors
from agentos.agents.jail.errors import FILLING_STEPS, explain, low_limit
from agentos.agents.spec import AgentSpec
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.errors import StepFailed
from agentos_sdk.errors import CallError, IsolationUnavailable, Unavailable
from tests.support.runs.rows import each_row

LIMITS = [(errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "fs.file-max")]


def of_group(error: OSError) -> CgroupError:
    try:
        raise CgroupError(f"{error.filename}: {error.strerror}") from error
    except CgroupError as raised:
        return raised


@pytest.mark.parametrize("kind", [lambda error: error, of_group], ids=["a file", "a control group"])
@pytest.mark.parametrize(("number", "fix"), LIMITS)
def test_where_no_descriptor_is_left_the_fix_is_told(
    number: int, fix: str, kind: Callable[[OSError], Exception]
) -> None:
    error = kind(OSError(number, os.strerror(number), "/proc/7/ns/uts"))

    told = explain(error, AgentSpec("a", command=("true",)))
    with pytest.raises(Unavailable) as of_command, _start_errors("a", jailed=True):
        raise error

    for text in (str(told), str(of_command.value).removeprefix("a: ")):
        assert text.startswith(f"/proc/7/ns/uts: {os.strerror(number)}: ")
        assert fix in text
    assert told.error is Unavailable
    assert explain(of_group(OSError(errno.EACCES, "no", "x")), AgentSpec("a")).error is IsolationUnavailable


@pytest.mark.parametrize(
    ("full", "told"),
    [
        (("/sys/fs/cgroup/pids.max", 64), "a: the kernel's own control group may have 64 processes"),
        (None, "a has used up its processes"),
    ],
)
def test_a_command_for_which_there_is_no_process_says_whose_limit_it_is(
    monkeypatch: pytest.MonkeyPatch, full: tuple[str, int] | None, told: str
) -> None:
    monkeypatch.setattr(errors, "find_full_group", lambda own, mounts: full)

    with pytest.raises(CallError, match=told), _start_errors("a", jailed=True):
        raise StepFailed("Clone", errno.EAGAIN, "Resource temporarily unavailable")


def test_a_directory_that_no_overlay_can_show_is_named_with_what_to_do() -> None:
    spec = AgentSpec("a", command=("true",), workspace="/srv/project", workspace_mode="overlay")
    failure = StepFailed("MountOverlay /workspace", errno.EINVAL, "mount overlay: Invalid argument")

    told = explain(failure, spec)

    assert told.error is IsolationUnavailable
    assert str(told).startswith("workspace /srv/project: it can't be the lower layer of an overlay: mount overlay")
    assert str(told).endswith('say mode = "direct" (`agentos task`: --in-place)')


def test_ids_that_are_not_given_are_told_with_the_field_and_the_fix() -> None:
    failure = StepFailed("Clone", errno.EPERM, "/usr/bin/newgidmap: Operation not permitted")

    told = explain(failure, AgentSpec("a", command=("true",), image="a", user="root"))

    assert told.error is IsolationUnavailable
    assert str(told).startswith("user: /usr/bin/newgidmap: Operation not permitted: a range of 65,536 in /etc/subuid")


@each_row(
    ("step", "number", "text", "limit"),
    [
        ("Execute", errno.EMFILE, "Too many open files", "open_files"),
        ("Execute", errno.ENOMEM, "Cannot allocate memory", "memory"),
        ("Execute", errno.EINVAL, "MemoryError()", "memory"),
        (f"{FILLING_STEPS[0]} /x", errno.ENOSPC, "No space left on device", "inodes"),
        ("Execute", errno.ENOSPC, "No space left on device", None),
        (f"{FILLING_STEPS[0]} /x", errno.EINVAL, "Invalid argument", None),
    ],
)
def test_a_limit_that_is_too_low_to_begin_with_is_named(step: str, number: int, text: str, limit: str | None) -> None:
    assert low_limit(StepFailed(step, number, text)) == limit
