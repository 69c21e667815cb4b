"""The user namespaces of id-mapped mounts, of which one waits without maps."""

import os
import signal
from collections.abc import Iterator

import pytest

from agentos.sandbox.inside.sources import Namespaces

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root maps the ids of mounts")
MAP = "0 1610699000 1"


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    found = Namespaces()
    yield found
    found.close()
    found.build_ahead()
    if found._waiting is not None:
        found._waiting.end()


def use(namespaces: Namespaces) -> str:
    """The namespace that a request gets."""
    name = os.readlink(f"/proc/self/fd/{namespaces.get(MAP, MAP)}")
    namespaces.close()
    return name


def test_one_waits_once_one_was_needed(namespaces: Namespaces) -> None:
    namespaces.build_ahead()
    assert namespaces._waiting is None

    use(namespaces)
    namespaces.build_ahead()
    waiting = namespaces._waiting
    assert waiting is not None
    own = os.readlink(f"/proc/{waiting._pid}/ns/user")

    assert use(namespaces) == own


def test_one_whose_process_was_killed_does_not_fail_a_start(namespaces: Namespaces) -> None:
    use(namespaces)
    namespaces.build_ahead()
    assert namespaces._waiting is not None
    os.kill(namespaces._waiting._pid, signal.SIGKILL)
    os.waitid(os.P_PID, namespaces._waiting._pid, os.WEXITED | os.WNOWAIT)

    assert use(namespaces).startswith("user:[")
