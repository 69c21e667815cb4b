"""``agentos image pull``: by skopeo, of a registry on loopback; and where skopeo isn't installed."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentos.images.store import Images
from tests.support.commands import run_agentos
from tests.support.images import entry, make_oci, make_tar
from tests.support.kernel import environment

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="NOT TESTED: skopeo isn't installed here")


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry that has the image ``tool:1``."""
    files = make_oci([make_tar([entry("bin/tool", b"tool", mode=0o755)])], {"Cmd": ["tool"]})
    [described] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[f"blobs/sha256/{described['digest'][7:]}"])
    manifest["mediaType"] = MANIFEST
    manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    for layer in manifest["layers"]:
        layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip"
    served = {"/v2/": b"{}", "/v2/tool/manifests/1": json.dumps(manifest).encode()}
    served |= {f"/v2/tool/blobs/sha256:{path[13:]}": data for path, data in files.items() if path.startswith("blobs/")}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.wfile.write(self.answer())

        def answer(self) -> bytes:
            data = served.get(self.path)
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Type", MANIFEST if "/manifests/" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            return data or b""

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def pull(place: Path, *words: str, **also: str) -> tuple[int, str]:
    (place / "state").mkdir(mode=0o700, exist_ok=True)
    command = ["image", "pull", *words, "--state-dir", str(place / "state")]
    ended = run_agentos(command, place, {**environment(place), **also})
    return ended.returncode, ended.stdout + ended.stderr


@needs_skopeo
def test_an_image_is_fetched_from_a_registry_and_imported(registry: str, tmp_path: Path) -> None:
    status, said = pull(tmp_path, f"{registry}/tool:1", "tool", "--insecure")
    assert status == 0, said
    made = Images(tmp_path / "state").find("tool")
    assert (made.config.cmd, made.format) == (("tool",), "oci layout")


@needs_skopeo
def test_what_skopeo_says_is_told_in_one_line(registry: str, tmp_path: Path) -> None:
    status, said = pull(tmp_path, f"{registry}/none:1", "tool", "--insecure")
    assert status == 1
    assert "tool wasn't made: skopeo: " in said.splitlines()[-1]
    assert Images(tmp_path / "state").list() == []


def test_without_skopeo_it_is_told_how_to_install_it(tmp_path: Path) -> None:
    status, said = pull(tmp_path, "example.org/tool:1", "tool", PATH=str(Path(sys.executable).parent))
    assert status == 1
    assert said.splitlines()[-1].endswith(
        "pull needs skopeo, which isn't in PATH: install its package (`apt-get install skopeo`)"
    )


def test_a_reference_is_never_an_option_of_skopeo_s(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    words = ["image", "pull", "--state-dir", str(tmp_path / "state"), "--", "--policy=x", "tool"]
    ended = run_agentos(words, tmp_path, environment(tmp_path))
    assert ended.returncode == 2
    assert "REF: expected a reference such as docker.io/library/debian:13, got '--policy=x'" in ended.stderr
