"""Archives of images, made here: root tars, OCI layouts and what `docker save` writes."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def entry(
    name: str, content: bytes | None = None, *, kind: bytes = FILE, target: str = "", mode: int = 0o644, **also: Any
) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of a tar; a name that ends with / is a directory's."""
    info = tarfile.TarInfo(name.rstrip("/") if name != "/" else name)
    info.type, info.linkname, info.mode, info.mtime = kind, target, mode, 1_000_000_000
    if name.endswith("/"):
        info.type, info.mode = DIRECTORY, mode | 0o111
    for key, value in also.items():
        setattr(info, key, value)
    info.size = len(content or b"")
    return info, content or b""


def make_tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_config(layers: Iterable[bytes], config: Mapping[str, Any], **also: Any) -> bytes:
    said = {"architecture": MACHINE, "os": "linux", "config": config, **also}
    return json.dumps({**said, "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]}}).encode()


def make_oci(layers: Iterable[bytes], config: Mapping[str, Any] | None = None, pack: bool = True) -> dict[str, bytes]:
    """The files of an OCI layout, by path."""
    layers = list(layers)
    packed = [gzip.compress(one, 1) if pack else one for one in layers]
    said = make_config(layers, config or {})
    manifest = json.dumps(
        {"schemaVersion": 2, "config": describe(said), "layers": [describe(one) for one in packed]}
    ).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [describe(manifest)]}).encode()
    blobs = {f"blobs/sha256/{digest(one)[7:]}": one for one in (*packed, said, manifest)}
    return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', **blobs, "index.json": index}


def describe(blob: bytes, **also: Any) -> dict[str, Any]:
    return {"mediaType": "application/octet-stream", "digest": digest(blob), "size": len(blob), **also}


def make_saved(layers: Iterable[bytes], config: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The files of what `docker save` writes, by path."""
    layers = list(layers)
    said = make_config(layers, config or {})
    paths = [f"{digest(one)[7:]}.tar" for one in layers]
    image = {"Config": f"{digest(said)[7:]}.json", "RepoTags": ["a:1"], "Layers": paths}
    blobs = dict(zip(paths, layers, strict=True))
    return {**blobs, image["Config"]: said, "manifest.json": json.dumps([image]).encode()}  # type: ignore[dict-item]


def tar_files(files: Mapping[str, bytes]) -> bytes:
    return make_tar(entry(path, content) for path, content in files.items())


def write_files(place: Path, files: Mapping[str, bytes]) -> str:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    return str(place)


def copy_programs(root: Path, *names: str) -> None:
    """Copy programs of the host's into a root, with the libraries that they load."""
    for name in names:
        program = shutil.which(name)
        assert program is not None, f"this host has no {name}"
        copy_file(program, root / (name.lstrip("/") if "/" in name else f"bin/{name}"))
        copy_libraries(root, program)


def copy_libraries(root: Path, *files: str) -> None:
    """Copy what these programs and libraries load."""
    found = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    for library in sorted(set(re.findall(r"(/\S+) \(0x", found))):
        copy_file(library, root / library.lstrip("/"))


def copy_file(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def make_root(place: Path) -> Path:
    """A root with a shell and a few programs, a set-id file, and a directory that programs may write to."""
    copy_programs(place, "sh", "cat", "ls", "id", "stat", "rm", "mkdir", "chmod", "sleep")
    for directory in ("etc", "srv", "run"):
        (place / directory).mkdir()
    (place / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nother:x:1000:1000::/:/bin/sh\n")
    (place / "etc" / "group").write_text("root:x:0:\n")
    (place / "srv" / "data").mkdir()
    (place / "srv" / "data" / "file").write_text("of the image\n")
    (place / "srv" / "name").write_text("tiny\n")
    os.symlink("bin", place / "sbin")
    return place


def add_python(root: Path) -> None:
    """Copy this Python with its standard library into a root."""
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    copy_programs(root, os.path.realpath(sys.executable))
    target = root / "usr" / "local"
    (target / "bin").mkdir(parents=True)
    shutil.move(root / os.path.realpath(sys.executable).lstrip("/"), target / "bin" / "python3")
    left_out = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "idlelib", "tkinter", "config-*")
    shutil.copytree(prefix / "lib" / version, target / "lib" / version, ignore=left_out, symlinks=True)
    copy_libraries(root, *map(str, (target / "lib" / version / "lib-dynload").glob("*.so")))


def tar_root(root: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(root, ".")
    return file.getvalue()


def add_packages(root: Path, debs: Path) -> None:
    """Copy this Debian's apt, dpkg, useradd and su into a root, and a package ``inside``, which is made in ``debs``."""
    copy_programs(root, *(f"/usr/bin/{name}" for name in ("apt-get", "dpkg", "dpkg-deb", "dpkg-split", "dpkg-query")))
    copy_programs(root, "tar", "chgrp", "chown", "bash", "/usr/sbin/useradd", "/usr/sbin/groupadd", "su", "mktemp")
    copy_programs(root, "/sbin/ldconfig", "/sbin/start-stop-daemon", "diff", "touch", "grep", "passwd")
    for name in ("file", "copy", "store"):
        copy_programs(root, f"/usr/lib/apt/methods/{name}")
    modules = Path("/lib/x86_64-linux-gnu/security")
    tables, settings = Path("/usr/share/dpkg").glob("*table"), Path("/etc/security").glob("*.conf")
    for path in (*modules.glob("pam_*.so"), *Path("/etc/pam.d").iterdir(), Path("/etc/login.defs"), *tables, *settings):
        copy_file(str(path), root / str(path).lstrip("/"))
    copy_libraries(root, *map(str, modules.glob("pam_*.so")))
    places = ("lib/dpkg/info", "lib/dpkg/updates", "lib/dpkg/triggers", "lib/apt/lists/partial", "log/apt")
    for place in (*places, "cache/apt/archives/partial"):
        (root / "var" / place).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (root / "home").mkdir(exist_ok=True)
    with open(root / "etc" / "passwd", "a", encoding="ascii") as file:
        file.write("_apt:x:42:65534::/nonexistent:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    for name, text in (("shadow", "root:*:1::::::\n"), ("group", "root:x:0:\nnogroup:x:65534:\n")):
        (root / "etc" / name).write_text(text)
    (root / "etc/apt/apt.conf.d").mkdir(parents=True)
    (root / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/srv/repo ./\n")
    _make_repository(debs, root / "srv" / "repo")


POSTINST = """#!/bin/sh
set -e
groupadd --system crontab
useradd --system -M daemon
chgrp crontab /usr/bin/tab
chmod 2755 /usr/bin/tab
mkdir -p /var/spool/tab
chown daemon:crontab /var/spool/tab
chmod 1730 /var/spool/tab
"""


def _make_repository(place: Path, repository: Path) -> None:
    """A package as cron is: its script makes a group, a set-group-id program and a directory of another user's."""
    control = "Package: inside\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: a\n"
    (place / "DEBIAN").mkdir(parents=True)
    (place / "DEBIAN" / "control").write_text(control)
    (place / "DEBIAN" / "postinst").write_text(POSTINST)
    (place / "DEBIAN" / "postinst").chmod(0o755)
    copy_file("/bin/true", place / "usr" / "bin" / "tab")
    repository.mkdir()
    deb = repository / "inside_1_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", place, deb], check=True, stdout=subprocess.DEVNULL)
    data = deb.read_bytes()
    sums = f"Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {digest(data)[7:]}\n"
    (repository / "Packages").write_text(control + sums)
