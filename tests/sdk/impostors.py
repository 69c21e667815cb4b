"""Things that listen at a socket and are no kernel, or only half of one."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.wire import HEADER_SIZE, PATIENCE

Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    place = Path(tempfile.mkdtemp(prefix="aos-", dir="/tmp"))
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextlib.contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """The path of a socket where each connection is given to ``answer`` and closed after it."""
    with short_directory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(place / "s")
        listener.bind(path)
        listener.listen()
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    if not done.is_set():
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            done.set()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(path)
            thread.join(PATIENCE)


def saying(data: bytes) -> Answer:
    """Reads a header's worth, says ``data``, hangs up."""

    def answer(connection: socket.socket) -> None:
        connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
        connection.sendall(data)

    return answer


def silent(connection: socket.socket) -> None:
    """Reads everything and says nothing, until the peer goes."""
    while connection.recv(1 << 16):
        pass


@contextlib.contextmanager
def somebody_else_listening(uid: int) -> Iterator[str]:
    """The path of a socket in a directory where everybody may write, which a process of ``uid`` listens at.

    Only root can make one.
    """
    program = (
        "import os, socket, sys; uid = int(sys.argv[2]); os.setgroups([]); os.setgid(uid); os.setuid(uid)\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); input()"
    )
    with short_directory() as place:
        place.chmod(0o1777)
        path = str(place / "s")
        argv = [sys.executable, "-I", "-c", program, path, str(uid)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == b"\n", "it does not listen"
                os.chmod(path, 0o666)
                yield path
            finally:
                process.kill()
