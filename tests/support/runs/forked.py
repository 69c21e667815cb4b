"""``agentos`` as a shell or another program calls it: forked as the commands of other tests are.

What it calls is a client that takes 10 ms. It sends its arguments, directory and environment, with its standard
streams, forwards signals, and ends with the command's exit status.
"""

import marshal
import os
import select
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.support import fork_server

MAX_REQUEST = 1 << 18  # bytes
# The first message is the request; each later one is the number of a signal. The answer is the exit status.
# Modules that are built in: to import ``signal`` and ``os`` would take twice as long as the rest.
CLIENT = """#!{python} -IS
import _signal, _socket, marshal, posix, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect({path!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
request = marshal.dumps((sys.argv[1:], posix.getcwd(), posix.environ))
server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    _signal.signal(number, lambda number, frame: server.send(b"%d" % number))
sys.exit(int(server.recv(16) or b"1"))
"""


class Commands:
    """A program ``agentos`` in a new directory ``bin`` below ``place``, and the socket that serves it; close it."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "bin"
        self.directory.mkdir()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = str(self.directory / "socket")
        self._listener.bind(path)
        self._listener.listen()
        program = self.directory / "agentos"
        program.write_text(CLIENT.format(python=sys.executable, path=path))
        program.chmod(0o755)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            request, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
            if not request:  # the client was killed
                return
            argv, cwd, environ = marshal.loads(request)
            env = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
            env["PATH"] = env["PATH"].removeprefix(f"{self.directory}:")  # what it starts executes agentos
            try:
                command = fork_server.shared().fork(argv, cwd, env, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            while command.fileno() not in select.select([connection.fileno(), command.fileno()], [], [])[0]:
                if not (number := connection.recv(16)):  # the client was killed
                    command.kill()
                    command.wait()
                    return
                command.send_signal(int(number))
            status = command.wait()
            with suppress(BrokenPipeError):  # the client was killed meanwhile
                connection.send(b"%d" % (status if status >= 0 else 128 - status))
