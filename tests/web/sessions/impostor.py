"""A program that has the dashboard's port while the kernel is down: it keeps what browsers send."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Message, Request, TextMessage

Answer = Callable[[str], Sequence[str]]


@define
class Impostor:
    """``files`` are by path, with their types. ``answer``: what it sends for a WebSocket's message."""

    port: int
    answer: Answer
    files: Mapping[str, tuple[str, str]] = field(factory=dict)
    got: list[str] = field(factory=list)  # heads of requests, and messages
    _news: threading.Condition = field(factory=threading.Condition)
    _open: list[socket.socket] = field(factory=list)

    def wait(self, wanted: Callable[[str], object], seconds: float) -> str:
        """The first thing it got that is wanted."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(wanted, self.got)), seconds), self.got
            return next(filter(wanted, self.got))

    def note(self, text: str) -> None:
        with self._news:
            self.got.append(text)
            self._news.notify_all()

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                sock, _ = listener.accept()
                self._open.append(sock)
                threading.Thread(target=self._serve, args=[sock], daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := sock.recv(65536)):
                    return
                head += data
            self.note(head.decode())
            if b"upgrade: websocket" in head.lower():
                self._talk(sock, head)
                return
            path = head.split(b" ")[1].decode().partition("?")[0]
            kind, text = self.files.get(path, ("text/plain", "none"))
            lines = ("HTTP/1.1 200 OK", f"content-type: {kind}", f"content-length: {len(text)}", "connection: close")
            sock.sendall("\r\n".join([*lines, "", text]).encode())

    def _talk(self, sock: socket.socket, head: bytes) -> None:
        protocol = WSConnection(ConnectionType.SERVER)
        data = head
        while data:
            protocol.receive_data(data)
            for event in protocol.events():
                if isinstance(event, Request):
                    sock.sendall(protocol.send(AcceptConnection()))
                elif isinstance(event, TextMessage):
                    self.note(event.data)
                    for text in self.answer(event.data):
                        sock.sendall(protocol.send(Message(data=text)))
            data = sock.recv(65536)

    def close(self) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def impostor(
    port: int, answer: Answer = lambda _: (), files: Mapping[str, tuple[str, str]] | None = None
) -> Iterator[Impostor]:
    """It listens where browsers look for names below ``localhost``."""
    with contextlib.ExitStack() as stack:
        made = Impostor(port, answer, files or {})
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
            listener = stack.enter_context(socket.create_server((host, port), family=family))
            threading.Thread(target=made.accept, args=[listener], daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread
        stack.callback(made.close)
        yield made
