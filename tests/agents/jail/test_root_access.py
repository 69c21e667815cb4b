"""The root directory of a program is opened only while its pid is that of the program."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.agents.jail.root_access import Ended, root_of

NAMESPACE = os.stat("/proc/self/ns/mnt").st_ino
ENDED = (1 << 22) + 1  # no pid is higher than 1 << 22


def program(pid: int, namespace: int, status: int | None = None) -> Any:
    return SimpleNamespace(program=pid, status=status, observed=SimpleNamespace(namespaces={"mnt": namespace}))


def test_the_root_of_a_program_that_runs_is_opened() -> None:
    with root_of(program(os.getpid(), NAMESPACE)) as root:
        assert os.path.samestat(os.fstat(root), os.stat("/"))


@pytest.mark.parametrize(
    "ended",
    [program(os.getpid(), NAMESPACE + 1), program(os.getpid(), NAMESPACE, status=0), program(ENDED, NAMESPACE)],
    ids=["another has its pid", "its end is known", "no process has its pid"],
)
def test_no_root_is_opened_once_the_program_has_ended(ended: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Ended, match="the agent has ended"), root_of(ended, "the agent"):
        pass
    assert len(os.listdir("/proc/self/fd")) <= before
