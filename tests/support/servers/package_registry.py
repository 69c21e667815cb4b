"""Package registries on loopback with one package each: an index as pip reads it, and one as npm does."""

import contextlib
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SERVER = Path(__file__).with_name("plain_mcp_server.py").read_text()
WHEEL = "note_server-1.0-py3-none-any.whl"
SCRIPT = """#!/usr/bin/env node
const lines = require("node:readline").createInterface({ input: process.stdin });
const tools = [{ name: "list", description: "List all notes.", inputSchema: { type: "object" } }];
lines.on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "n", version: "1" } },
    "tools/list": { tools },
    "tools/call": { content: [{ type: "text", text: process.argv.slice(2).join(" ") }] },
  };
  const result = results[method];
  const rest = result ? { result } : { error: { code: -32601, message: "no such method" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...rest }));
});
"""
MANIFEST = {
    "name": "@notes/server",
    "version": "1.2.3",
    "bin": {"note-server": "./main.js"},
    "scripts": {"postinstall": "touch /workspace/package/it-ran"},
}


def make_wheel() -> bytes:
    data = io.BytesIO()
    info = "note_server-1.0.dist-info"
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("note_server.py", SERVER)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: note-server\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nnote-server = note_server:main\n")
        wheel.writestr(f"{info}/RECORD", "")
    return data.getvalue()


def make_tarball() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, text in (("package.json", json.dumps(MANIFEST)), ("main.js", SCRIPT)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text.encode()), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


@contextlib.contextmanager
def package_registry() -> Iterator[str]:
    """The URL of both: ``/simple/`` is pip's, ``/npm/`` npm's."""
    wheel, tarball = make_wheel(), make_tarball()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            base = f"http://127.0.0.1:{server.server_port}"
            integrity = "sha512-" + b64encode(hashlib.sha512(tarball).digest()).decode()
            version = MANIFEST | {"dist": {"tarball": f"{base}/npm/server.tgz", "integrity": integrity}}
            described = {"name": "@notes/server", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": version}}
            pages = {
                "/simple/note-server/": (f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode(), "text/html"),
                f"/files/{WHEEL}": (wheel, "application/octet-stream"),
                "/npm/@notes%2fserver": (json.dumps(described).encode(), "application/json"),
                "/npm/server.tgz": (tarball, "application/octet-stream"),
            }
            path = self.path.replace("%2F", "%2f")
            body, kind = pages.get(path, (b"", ""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", kind or "text/plain")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
