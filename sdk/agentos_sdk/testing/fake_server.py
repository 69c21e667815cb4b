"""The socket of a fake kernel: a thread for each connection, and in protocol 2 one for each call."""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentos_sdk.calls.connection import Cancel, Hello
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, CallError, PermissionDenied
from agentos_sdk.frames import MAX_PAYLOAD, Frames, frame
from agentos_sdk.opcodes import Op

from . import replies

KERNEL_VERSION = "fake"
READ_SIZE = 64 << 10


class Answers(Protocol):
    """What answers the calls of all connections."""

    def answer(
        self,
        op: int,
        body: bytes,
        send_chunk: Callable[[Mapping[str, Any]], None] | None,
        is_cancelled: Callable[[], bool],
    ) -> bytes: ...

    def wake(self) -> None: ...


class Server:
    """A listening socket at ``path``, until :meth:`close`."""

    def __init__(self, path: str, answers: Answers, agent_id: int, name: str) -> None:
        self.answers, self.agent_id, self.name = answers, agent_id, name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._connections: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, name="FakeKernel", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End all connections and wait for their threads."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        for connection in connections:
            connection.hang_up()
        self.answers.wake()
        self._accepting.join()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    sock.close()
                    return
                connection = Connection(sock, self)
                self._connections.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: "Connection") -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.discard(connection)


class Connection:
    """One client: protocol 1 answers in order, protocol 2 each call in a thread of its own."""

    def __init__(self, sock: socket.socket, server: Server) -> None:
        self._socket, self._server = sock, server
        self._protocol = 1
        self._sending = threading.Lock()
        self._waiting: dict[int, threading.Event] = {}  # set: the call is cancelled
        self._threads: list[threading.Thread] = []

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Answer until the client leaves."""
        frames = Frames([MAX_PAYLOAD] * 256)
        with self._socket, contextlib.suppress(OSError):
            try:
                while frames.broken is None and (data := self._socket.recv(READ_SIZE)):
                    for number, op, body in frames.take(data):
                        if not self._take(number, op, body):
                            return
                if frames.broken is not None:
                    self._send(0, frames.broken_op, replies.encode_failure(frames.broken_op, frames.broken))
            finally:
                for cancelled in list(self._waiting.values()):
                    cancelled.set()
                self._server.answers.wake()
                for thread in self._threads:
                    thread.join()

    def _take(self, number: int, op: int, body: bytes) -> bool:
        """Answer one request, or begin to; False when the connection is over."""
        if self._protocol == 1:
            number = self._server.agent_id
        if op == Op.EXIT:
            self._send(number, op, b"goodbye")
            return False
        if op == Op.HELLO:
            self._send(number, op, self._hello(body))
        elif op == Op.CANCEL:
            self._send(number, op, self._cancel(body))
        elif op == Op.CHUNK and number in self._waiting:
            pass  # input of a command that nothing runs
        elif self._protocol == 1:
            self._send(number, op, self._server.answers.answer(op, body, None, self._is_gone))
        elif number in self._waiting or not number:
            text = f"request id {number}: expected one that is not 0 and not in flight"
            self._send(number, op, replies.encode_failure(op, BadRequest(text)))
        else:
            self._waiting[number] = threading.Event()
            thread = threading.Thread(target=self._answer, args=(number, op, body), daemon=True)
            self._threads.append(thread)
            thread.start()
        return True

    def _answer(self, number: int, op: int, body: bytes) -> None:
        def send_chunk(chunk: Mapping[str, Any]) -> None:
            self._send(number, Op.CHUNK, codec.encode(chunk))

        cancelled = self._waiting[number]
        with contextlib.suppress(OSError):
            reply = self._server.answers.answer(op, body, send_chunk, cancelled.is_set)
            del self._waiting[number]
            self._send(number, op, reply)

    def _hello(self, body: bytes) -> bytes:
        try:
            request = self._read_hello(body)
        except CallError as error:
            return replies.encode_failure(Op.HELLO, error)
        self._protocol = request.protocol
        is_second = request.protocol == 2
        welcome = {
            "protocol": request.protocol,
            "kernel_version": KERNEL_VERSION,
            "agent_id": self._server.agent_id,
            "name": self._server.name,
            "features": {"streams": is_second, "cancel": is_second},
        }
        return replies.encode_reply(Op.HELLO, welcome)

    def _read_hello(self, body: bytes) -> Hello:
        try:
            request = codec.read(Hello, body or b"{}")
        except codec.Invalid as error:
            raise BadRequest(str(error)) from None
        if request.protocol < self._protocol:
            text = f"protocol: this connection already speaks version {self._protocol}, got {request.protocol}"
            raise BadRequest(text)
        if request.of_guest:
            raise PermissionDenied("as, level, permissions, mailbox: only an operator's connection can become a guest")
        return request

    def _cancel(self, body: bytes) -> bytes:
        try:
            request = codec.read(Cancel, body or b"{}")
        except codec.Invalid as error:
            return replies.encode_failure(Op.CANCEL, BadRequest(str(error)))
        cancelled = self._waiting.get(request.id)
        if cancelled is not None:
            cancelled.set()
            self._server.answers.wake()
        return replies.encode_reply(Op.CANCEL, {"cancelled": cancelled is not None})

    def _is_gone(self) -> bool:
        """Whether a client that waits for a reply in protocol 1 has closed its connection."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _send(self, number: int, op: int, body: bytes) -> None:
        with self._sending:
            self._socket.sendall(frame(number, op, body))
