"""What unmodified programs fetch in tests: HTTP and HTTPS servers of files, a Postgres server, and names for them."""

import contextlib
import functools
import http.server
import io
import json
import shutil
import socketserver
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import trio
from attrs import frozen

from tests.support.servers.dns_server import DnsServer, serve_dns
from tests.support.servers.http_server import make_authority, make_server_context
from tests.support.wire import PATIENCE


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and repeats what is posted."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Postgres(socketserver.StreamRequestHandler):
    """Speaks as much of Postgres' protocol as one query takes; every result is ``it works``."""

    def handle(self) -> None:
        length = int.from_bytes(self.rfile.read(4))
        if self.rfile.read(length - 4)[:4] == (80877103).to_bytes(4):  # SSLRequest
            self.wfile.write(b"N")
            length = int.from_bytes(self.rfile.read(4))
            self.rfile.read(length - 4)
        ready = message(b"Z", b"I")
        self.wfile.write(message(b"R", bytes(4)) + message(b"S", b"server_version\x0016.0\0") + ready)
        while kind := self.rfile.read(1):
            self.rfile.read(int.from_bytes(self.rfile.read(4)) - 4)
            if kind == b"Q":
                column = b"answer\0" + bytes(6) + (25).to_bytes(4) + b"\xff\xff" + b"\xff" * 4 + bytes(2)
                row = (1).to_bytes(2) + (8).to_bytes(4) + b"it works"
                done = message(b"C", b"SELECT 1\0")
                self.wfile.write(message(b"T", (1).to_bytes(2) + column) + message(b"D", row) + done + ready)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (4 + len(body)).to_bytes(4) + body


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Clients that don't trust the certificate, or are cut off, are part of the tests."""


@frozen
class Sites:
    """Ports on 127.0.0.1; ``dns`` is the address of the DNS server, and ``asked`` the names that it was asked for.

    ``ca`` is a directory with the certificate of the authority, ``ca.pem``, that signed the one for ``*.test``.
    """

    http: int
    https: int
    postgres: int
    dns: str
    asked: list[str]
    ca: Path


@contextlib.contextmanager
def running_sites(directory: Path, name: str = "files.test") -> Iterator[Sites]:
    """All servers, until the end of the block; their files are made in ``directory``."""
    www, ca = directory / "www", directory / "ca"
    for each in (www, ca):
        each.mkdir(parents=True)
    shutil.copy(make_authority(directory), ca / "ca.pem")
    context = make_server_context(directory, f"DNS:{name}", "DNS:evil.test")
    with contextlib.ExitStack() as stack:
        plain, secure, postgres = (
            stack.enter_context(served(kind))
            for kind in (
                functools.partial(Files, directory=str(www)),
                functools.partial(Files, directory=str(www)),
                Postgres,
            )
        )
        secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
        dns = stack.enter_context(running_dns(name, "db.test", "evil.test"))
        ports = [server.server_address[1] for server in (plain, secure, postgres)]
        fill(www, f"https://{name}:{ports[1]}")
        yield Sites(ports[0], ports[1], ports[2], f"{dns.address[0]}:{dns.address[1]}", dns.asked, ca)


@contextlib.contextmanager
def served(handler: object) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), handler) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def running_dns(*names: str, address: str = "127.0.0.1") -> Iterator[DnsServer]:
    server, ready, scope = DnsServer({name: [address] for name in names}), threading.Event(), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        with scope:
            async with serve_dns(server):
                tokens.append(trio.lowlevel.current_trio_token())
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(PATIENCE)
    yield server
    trio.from_thread.run_sync(scope.cancel, trio_token=tokens[0])
    thread.join()


def fill(www: Path, url: str) -> None:
    """A page, a Git repository, a Python package in an index, and an npm package in a registry."""
    (www / "hello.txt").write_text("hello\n")
    (www / "large.bin").write_bytes(bytes(range(256)) * 4096)
    make_repository(www / "work", www / "repo.git")
    index = www / "simple" / "tinywheel"
    index.mkdir(parents=True)
    name = "tinywheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("tinywheel.py", "print('installed')\n")
        wheel.writestr("tinywheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n")
        wheel.writestr(
            "tinywheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tinywheel-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    tarball = make_npm_tarball()
    (www / "tinypkg.tgz").write_bytes(tarball)
    dist = {"tarball": f"{url}/tinypkg.tgz", "shasum": sha1(tarball).hexdigest()}
    versions = {"1.0.0": {"name": "tinypkg", "version": "1.0.0", "dist": dist}}
    packument = {"name": "tinypkg", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    (www / "tinypkg").write_text(json.dumps(packument))


def make_repository(work: Path, bare: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    work.mkdir()
    (work / "README").write_text("cloned\n")
    for command in (["init", "-q"], ["add", "README"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=work, check=True, capture_output=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(work), str(bare)], check=True, capture_output=True)
    subprocess.run([*git, "update-server-info"], cwd=bare, check=True)  # for clients that only read files


def make_npm_tarball() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        files = {"package.json": '{"name": "tinypkg", "version": "1.0.0"}', "index.js": "console.log('installed')"}
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()
