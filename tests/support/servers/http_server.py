"""An HTTP server on loopback that says, byte for byte, what a test tells it, and keeps what it was asked."""

import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from subprocess import run

import trio
from attrs import define, field

from tests.support.wire import PATIENCE

NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

Answer = bytes | Callable[[trio.abc.Stream, "Asked"], Awaitable[None]]


@define
class Asked:
    """A request as it came in. ``connection`` is the number of its connection, counted from 1."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name), None)


@define(eq=False)
class HttpServer:
    """``answers``: by path, what is sent; a function sends it itself. Other paths are a 404."""

    answers: dict[str, Answer] = field(factory=dict)
    asked: list[Asked] = field(factory=list)
    connections: int = 0  # that were ever opened
    open: int = 0  # that are open now
    port: int = 0
    scheme: str = "http"

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, context: ssl.SSLContext | None, stream: trio.SocketStream) -> None:
        self.connections, self.open = self.connections + 1, self.open + 1
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            try:
                talk: trio.abc.Stream = stream
                if context is not None:
                    talk = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
                await self._talk(talk, self.connections)
            finally:
                self.open -= 1
                await trio.aclose_forcefully(stream)

    async def _talk(self, stream: trio.abc.Stream, number: int) -> None:
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                if not (more := await stream.receive_some(65536)):
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            line, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = line.split(" ")
            headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in lines)]
            asked = Asked(method, target, headers, b"", number)
            length = int(asked.header("content-length") or 0)
            while len(data) < length:
                if not (more := await stream.receive_some(65536)):
                    return
                data += more
            asked.body, data = data[:length], data[length:]
            self.asked.append(asked)
            answer = self.answers.get(target.partition("?")[0], response(b"no such page", 404))
            if isinstance(answer, bytes):
                await stream.send_all(answer)
            else:
                await answer(stream, asked)


def response(body: bytes, status: int = 200, **headers: str) -> bytes:
    """A whole response; ``_`` in a header's name is ``-``."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@contextlib.contextmanager
def http_server(answers: Mapping[str, Answer] = {}, context: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    """It runs in a thread, on all loopback addresses of IPv4, with TLS if there is a ``context``."""
    server, ready, box = HttpServer(dict(answers)), threading.Event(), list[tuple[object, trio.CancelScope]]()

    async def serve() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                talk = partial(server.serve, context)
                listeners = await nursery.start(partial(trio.serve_tcp, talk, 0, host="0.0.0.0"))
                server.port = listeners[0].socket.getsockname()[1]
                server.scheme = "https" if context is not None else "http"
                box.append((trio.lowlevel.current_trio_token(), scope))
                ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the server is up"
    token, scope = box[0]
    try:
        yield server
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)  # type: ignore[arg-type]
        thread.join(PATIENCE)


def make_authority(directory: Path) -> Path:
    """A certificate authority of the test's; the path of its certificate."""
    file = directory / "authority.pem"
    use = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"  # strict clients want both
    openssl(f"req -x509 {NEW_KEY} -days 2 -keyout authority.key -out {file.name} -subj /CN=authority {use}", directory)
    return file


def make_server_context(directory: Path, *names: str) -> ssl.SSLContext:
    """A server's context, with a certificate by the authority in ``directory`` for ``DNS:...`` and ``IP:...``."""
    (directory / "server.ext").write_text(f"subjectAltName={','.join(names)}\n")
    openssl(f"req {NEW_KEY} -keyout server.key -out server.csr -subj /CN=server", directory)
    signed = "-CA authority.pem -CAkey authority.key -CAcreateserial -extfile server.ext"
    openssl(f"x509 -req -in server.csr -days 2 {signed} -out server.pem", directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    return context


def openssl(words: str, directory: Path) -> None:
    run(["openssl", *words.split()], check=True, capture_output=True, cwd=directory)
