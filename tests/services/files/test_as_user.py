"""A thread that acts as somebody else: it alone, in everything that files are about, and only for that long."""

import os
import threading
from pathlib import Path

import pytest

from agentos.services.files.as_user import Identity, acting_as

SOMEBODY = Identity(1610612999, 1610612998)
WHO = ("Uid", "Gid", "Groups", "CapEff")


def status() -> dict[str, list[str]]:
    """Who this thread is."""
    lines = (line.partition(":") for line in Path("/proc/thread-self/status").read_text().splitlines())
    return {name: rest.split() for name, _, rest in lines if name in WHO}


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as somebody else")


def test_it_is_another_user_without_groups_and_capabilities_and_then_itself_again() -> None:
    groups = os.getgroups()
    os.setgroups([0, 4, 27])
    try:
        before = status()
        with acting_as(SOMEBODY):
            within = status()

        assert within["Uid"] == ["0", "0", "0", str(SOMEBODY.uid)]
        assert within["Gid"] == ["0", "0", "0", str(SOMEBODY.gid)]
        assert within["Groups"] == []
        assert int(within["CapEff"][0], 16) == 0
        assert status() == before
        assert before["Groups"] == ["0", "4", "27"]
    finally:
        os.setgroups(groups)


def test_it_is_itself_again_after_an_error() -> None:
    before = status()

    with pytest.raises(PermissionError), acting_as(SOMEBODY):
        os.open("/etc/shadow", os.O_RDONLY)

    assert status() == before


def test_no_other_thread_changes() -> None:
    before, seen = status(), []
    with acting_as(SOMEBODY):
        other = threading.Thread(target=lambda: seen.append(os.stat("/proc/self").st_uid))
        other.start()
        other.join()
        main = Path(f"/proc/self/task/{os.getpid()}/status").read_text()

    assert seen == [0]
    assert f"Uid:\t{os.getuid()}" in main
    assert status() == before


def test_acting_as_no_user_changes_nothing() -> None:
    before = status()

    with acting_as(None):
        assert status() == before


def test_a_failed_change_of_user_runs_nothing_as_the_kernels_user(monkeypatch: pytest.MonkeyPatch) -> None:
    before = status()

    with pytest.raises(OSError, match="can't act as"), acting_as(Identity(0xFFFF_FFFF, 5)):
        pytest.fail("it goes on as root")

    assert status() == before


def test_our_memory_stays_our_own() -> None:
    """Where fs.suid_dumpable is set a change of user makes a process readable again; here that it is written down."""
    import ctypes

    libc = ctypes.CDLL(None)
    with acting_as(SOMEBODY):
        within = libc.prctl(3, 0, 0, 0, 0)

    assert (within, libc.prctl(3, 0, 0, 0, 0)) == (0, 0)
