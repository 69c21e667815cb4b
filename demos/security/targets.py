"""Targets of the attacks, all made for the demo: secrets, services, and a process to attack."""

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field

VARIABLE = "DEMO_API_KEY"
ORIGINAL_BASHRC = "# as it was\n"
VICTIM = "import sys; print('ready', flush=True); sys.stdin.read()  # the demo's victim"


@define
class Services:
    """A name server, a TCP service that is a web server too, and a Unix socket; ``heard`` lists those called."""

    dns: socket.socket
    tcp: socket.socket
    unix: socket.socket
    heard: set[str] = field(factory=set)

    def serve(self, until: socket.socket) -> None:
        """Answer every client until that socket is closed at its other end."""
        with selectors.DefaultSelector() as ready:
            for each in (self.dns, self.tcp, self.unix, until):
                ready.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is until:
                        return
                    with contextlib.suppress(OSError):  # the client has disconnected
                        self._answer(key.fileobj)

    def _answer(self, door: object) -> None:
        if door is self.dns:
            query, sender = self.dns.recvfrom(512)
            self.heard.add("dns")
            self.dns.sendto(query[:2] + b"\x81\x83" + query[4:], sender)  # there is no such name
            return
        assert isinstance(door, socket.socket)
        caller, _ = door.accept()
        with caller:
            caller.settimeout(1.0)
            is_http = caller.recv(512).startswith(b"POST ")
            self.heard.add("unix" if door is self.unix else "http" if is_http else "tcp")
            caller.sendall(b"HTTP/1.0 200 OK\r\n\r\n" if is_http else b"welcome")


@define
class Targets:
    """``secret`` is in a file in ``home``, in the environment of ``victim``, and in that of the kernel.

    ``mark`` is no secret: it is a socket's name, and an argument of each process to be counted.
    """

    secret: str
    mark: str
    home: Path
    services: Services
    victim: "subprocess.Popen[str]"

    @property
    def startup(self) -> str:
        """The content of ``.bashrc``."""
        return (self.home / ".bashrc").read_text()


@contextlib.contextmanager
def plant_targets() -> Iterator[Targets]:
    """Create the targets; all are removed at the end."""
    secret, mark = f"sk-demo-{secrets.token_hex(12)}", f"demo-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aos-demo-")))
        create_files(home, secret)
        services = stack.enter_context(run_services(mark))
        victim = stack.enter_context(start_victim(secret))
        os.environ[VARIABLE] = secret
        stack.callback(os.environ.pop, VARIABLE)
        yield Targets(secret, mark, home, services, victim)


def create_files(home: Path, secret: str) -> None:
    """World-readable and -writable: only the walls can stop an access."""
    (home / ".ssh").mkdir()
    for name, text in ((".ssh/id_ed25519", secret), (".bashrc", ORIGINAL_BASHRC)):
        (home / name).write_text(text)
        (home / name).chmod(0o666)
    for directory in (home, home / ".ssh"):
        directory.chmod(0o777)


@contextlib.contextmanager
def run_services(mark: str) -> Iterator[Services]:
    with contextlib.ExitStack() as stack:
        dns, unix = (
            stack.enter_context(socket.socket(*kind))
            for kind in ((socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_STREAM))
        )
        dns.bind(("127.0.0.1", 0))
        unix.bind(f"\0{mark}")
        unix.listen()
        services = Services(dns, stack.enter_context(socket.create_server(("127.0.0.1", 0))), unix)
        until, end = socket.socketpair()
        stack.enter_context(until)
        thread = threading.Thread(target=services.serve, args=(until,), daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(end.close)
        yield services


@contextlib.contextmanager
def start_victim(secret: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that does nothing, and ends with us."""
    argv = [sys.executable, "-I", "-S", "-c", VICTIM]
    with subprocess.Popen(
        argv,
        env={VARIABLE: secret},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes only to the demo, which then ends it
    ) as victim:
        try:
            assert victim.stdout is not None
            if victim.stdout.readline() != "ready\n":
                raise OSError("the process that was to be attacked did not start")
            yield victim
        finally:
            victim.kill()
