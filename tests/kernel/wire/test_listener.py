"""A listening socket: made where nothing else is, and only for those it is meant for."""

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentos.kernel.wire.listener import ListenError, listen, listen_for_operators
from tests.sdk.impostors import short_directory, somebody_else_listening


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


def test_a_socket_is_for_its_owner_only(place: Path) -> None:
    before = os.umask(0)
    try:
        with listen(f"{place}/s"):
            assert stat.S_IMODE(os.stat(place / "s").st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_stale_socket_is_replaced(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(f"{place}/s")

    with listen(f"{place}/s"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(f"{place}/s")


def test_a_live_socket_is_not_replaced(place: Path) -> None:
    with listen(f"{place}/s") as first:
        with pytest.raises(ListenError, match="listening there already"):
            listen(f"{place}/s")

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(f"{place}/s")
            first.accept()[0].close()  # that of the one who looked
            first.accept()[0].close()


@pytest.mark.parametrize("stale", [True, False])
def test_of_two_kernels_that_begin_at_the_same_moment_one_listens(place: Path, stale: bool) -> None:
    path, start = f"{place}/s", threading.Barrier(2)

    def begin() -> socket.socket | None:
        start.wait()
        try:
            return listen_for_operators(path)
        except ListenError:
            return None

    with ThreadPoolExecutor(2) as threads:
        for _ in range(200):
            if stale:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
                    left.bind(path)
            begun = [threads.submit(begin) for _ in range(2)]
            listening = [sock for one in begun if (sock := one.result()) is not None]
            assert len(listening) == 1
            listening[0].close()
            os.unlink(path)


def test_a_directory_that_another_program_has_locked_is_used_all_the_same(place: Path) -> None:
    directory = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with listen_for_operators(f"{place}/s"):
            assert (place / "s").is_socket()
    finally:
        os.close(directory)


def test_a_file_that_is_no_socket_is_left_alone(place: Path) -> None:
    (place / "s").write_text("precious")
    (place / "link").symlink_to("s")

    for name in ("s", "link"):
        with pytest.raises(ListenError, match="no socket"):
            listen(f"{place}/{name}")

    assert (place / "s").read_text() == "precious"


def test_a_socket_of_another_user_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can make a socket of another uid")
    with somebody_else_listening(uid=65534) as path:
        with pytest.raises(ListenError, match="uid 65534"):
            listen(path)

        assert os.stat(path).st_uid == 65534


def test_a_path_that_is_too_long_says_how_long_it_may_be(place: Path) -> None:
    with pytest.raises(ListenError, match="at most 107 bytes"):
        listen(f"{place}/{'x' * 107}")
    longest = f"{place}/" + "x" * (107 - len(f"{place}/"))
    with listen(longest):
        assert os.path.exists(longest)


def test_a_directory_that_is_not_there_is_said(place: Path) -> None:
    with pytest.raises(ListenError, match="No such file"):
        listen(f"{place}/none/s")
