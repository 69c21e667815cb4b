"""Canaries on the host that an attacker could find: set up, checked and removed."""

import contextlib
import ctypes
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

import agentos

from .inside.files import SETTINGS, SYSTEM
from .inside.frame import NAMESPACES, call, libc

_VICTIM = """
import signal, sys
hit = lambda number, frame: print(number, flush=True)
for number in (1, 2, 3, 10, 12, 15, 18): signal.signal(number, hit)
print("ready", flush=True)
while True: signal.pause()
"""
_USER_KEYRING = -4  # KEY_SPEC_USER_KEYRING
_FIONREAD = 0x541B


@frozen
class Canaries:
    """Everything that was set up. ``targets`` is what the attacker is told: locations, never contents."""

    token: str
    secret: str  # must not be readable for any attacker
    place: Path
    targets: Mapping[str, Any]
    environment: Mapping[str, str]  # of the process that starts the sandboxes; has secrets in it
    files: Sequence[int]  # descriptors that it has open across exec
    terminal: int  # its controlling terminal
    victim: "subprocess.Popen[str]"
    listeners: Sequence[socket.socket]
    settings: Mapping[str, bytes]

    @property
    def outside(self) -> Path:
        """The directory on the host that holds a workspace."""
        return self.place / "outside"

    @property
    def kernel_socket(self) -> Path:
        """The socket's path for a kernel under attack; attackers are told it."""
        return self.place / "kernel/agentos.sock"

    def kernel_paths(self) -> Sequence[str]:
        return list(self.targets["kernel_paths"])


@contextlib.contextmanager
def plant_canaries() -> Iterator[Canaries]:
    """Set up everything, and remove it at the end."""
    token = secrets.token_hex(6)
    secret = f"canary-{secrets.token_hex(12)}"
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aos-attack-", dir="/tmp")))
        place.chmod(0o755)
        files = _create_files(place, secret, stack)
        environment = {**os.environ, "API_KEY": secret, "HOME": str(place / "home")}
        victim = _start_victim(token, environment, stack)
        listeners, addresses = _open_listeners(place, token, stack)
        terminal = _open_terminal(stack)
        targets = {
            "token": token,
            "secret": str(place / "secret"),
            "ssh_key": str(place / "home/.ssh/id_ed25519"),
            "outside": str(place / "outside"),
            "kernel_paths": _list_kernel_paths(place),
            "disk": _root_device(),
            "victim": victim.pid,
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
            "hostname": os.uname().nodename,
            "private_words": [str(place), str(Path(agentos.__file__).parent), "agentos-"],
            "shm_key": _create_segment(secret, stack),
            "key_name": f"key-{token}",
            "key": _add_key(token, secret, stack),
            **addresses,
        }
        settings = _read_settings()
        yield Canaries(token, secret, place, targets, environment, files, terminal, victim, listeners, settings)


def _create_files(place: Path, secret: str, stack: contextlib.ExitStack) -> Sequence[int]:
    """World-writable files: only a separate root keeps an attacker out."""
    (place / "home/.ssh").mkdir(parents=True)
    (place / "outside/workspace").mkdir(parents=True)
    for path in (place / "secret", place / "home/.ssh/id_ed25519"):
        path.write_text(secret)
        path.chmod(0o666)
    for directory in (place / "outside", place / "outside/workspace"):
        directory.chmod(0o777)
    opened = [os.open("/", os.O_RDONLY | os.O_DIRECTORY), os.open(place / "secret", os.O_RDWR)]
    for fd in opened:
        stack.callback(os.close, fd)
    return opened


def _start_victim(token: str, environment: Mapping[str, str], stack: contextlib.ExitStack) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-I", "-S", "-c", _VICTIM, f"victim-{token}"]
    victim = stack.enter_context(
        subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    )
    stack.callback(victim.kill)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    os.set_blocking(victim.stdout.fileno(), False)
    return victim


def _open_listeners(place: Path, token: str, stack: contextlib.ExitStack) -> tuple[list[socket.socket], dict[str, Any]]:
    path, abstract = f"{place}/socket", f"abstract-{token}"
    sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
    for ours, address in zip(sockets, (path, f"\0{abstract}"), strict=True):
        ours.bind(address)
    os.chmod(path, 0o666)
    four = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = four.getsockname()[1]
    sockets.append(four)
    with contextlib.suppress(OSError):  # a host without IPv6
        sockets.append(stack.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6)))
    for ours in sockets:
        ours.listen()
        ours.setblocking(False)
    return sockets, {"sockets": [path, f"{place}/kernel/agentos.sock"], "abstract": abstract, "port": port}


def _open_terminal(stack: contextlib.ExitStack) -> int:
    """Both ends stay open here, so that injected input can be counted."""
    master, slave = os.openpty()
    for fd in (master, slave):
        stack.callback(os.close, fd)
    import tty

    tty.setraw(slave)
    return slave


def _list_kernel_paths(place: Path) -> list[str]:
    """Where Python looks for the modules that the kernel imports."""
    user = place / f"home/.local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    return [*(path for path in sys.path if os.path.isdir(path)), str(user)]


def _root_device() -> tuple[int, int]:
    device = os.stat("/").st_dev
    return os.major(device), os.minor(device)


def _create_segment(secret: str, stack: contextlib.ExitStack) -> int:
    key = secrets.randbelow(1 << 30) + 1
    segment = libc("shmget", key, 4096, 0o1666)
    stack.callback(libc, "shmctl", segment, 0, None)
    attach = ctypes.CDLL(None).shmat
    attach.restype = ctypes.c_void_p
    ctypes.memmove(attach(segment, None, 0), secret.encode(), len(secret))
    return key


def _add_key(token: str, secret: str, stack: contextlib.ExitStack) -> int:
    """Add a key to the user's keyring; returns 0 on a host without keyrings."""
    try:
        key = call("add_key", b"user", f"key-{token}".encode(), secret.encode(), len(secret), _USER_KEYRING)
    except OSError:
        return 0
    stack.callback(call, "keyctl", 9, key, _USER_KEYRING)  # KEYCTL_UNLINK
    return key


def _read_settings() -> dict[str, bytes]:
    """Those settings that this Linux kernel has."""
    paths = {name: Path("/proc/sys", name) for name in SETTINGS}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def find_changes(canaries: Canaries) -> dict[str, str]:
    """Everything that was changed, by the check that must have changed it. Removes files left by attackers."""
    found = {}
    if said := _describe_signals(canaries):
        found["proc.signal_host_pid"] = found["proc.kill_everything"] = f"the victim: {said}"
    for listener, check in zip(
        canaries.listeners,
        ("ipc.unix_socket_path", "ipc.unix_socket_abstract", "net.host_loopback_tcp", "net.host_loopback_tcp"),
        strict=False,
    ):
        with contextlib.suppress(BlockingIOError):
            listener.accept()[0].close()
            found[check] = "a listener was connected to"
    if (canaries.place / "secret").read_text() != canaries.secret:
        found["file.proc_root_links"] = found["file.inherited_fds"] = "the secret was changed"
    typed = ctypes.c_int()
    libc("ioctl", canaries.terminal, _FIONREAD, ctypes.byref(typed))
    if typed.value:
        found["proc.terminal_injection"] = f"{typed.value} characters were typed"
    if os.uname().nodename != canaries.targets["hostname"]:
        found["ns.hostname"] = "the host has another name"
    if (now := _read_settings()) != canaries.settings:
        found["file.proc_sys_write"] = f"changed: {now}"
    return {**found, **_remove_left_files(canaries)}


def _describe_signals(canaries: Canaries) -> str:
    assert canaries.victim.stdout is not None
    heard = b""
    with contextlib.suppress(BlockingIOError):
        heard = os.read(canaries.victim.stdout.fileno(), 4096)
    ended = canaries.victim.poll()
    return "" if not heard and ended is None else f"signals {heard!r}, exit status {ended}"


def _remove_left_files(canaries: Canaries) -> dict[str, str]:
    name = f"planted-{canaries.token}"
    outside = canaries.outside
    where = {
        "deputy.path_tricks": [f"{place}/deputy-{canaries.token}" for place in (outside, "/etc")],
        "deputy.symlink_race": [f"{place}/race-{canaries.token}" for place in (outside, outside.parent)],
        "file.write_system_dirs": [f"{place}/{name}" for place in SYSTEM],
        "file.plant_code_for_the_kernel": [f"{place}/{name}.pth" for place in (*canaries.kernel_paths(), "/etc")],
        "file.write_outside_workspace": [f"{place}/{name}" for place in (outside, outside.parent, "/")],
    }
    found = {}
    for check, paths in where.items():
        there = [path for path in dict.fromkeys(paths) if os.path.lexists(path)]
        for path in there:
            with contextlib.suppress(FileNotFoundError):  # the same directory under another name
                os.unlink(path)
        if there:
            found[check] = f"left behind: {there}"
    if left := sorted(os.listdir(outside / "workspace")):
        found["file.persistence_in_workspace"] = f"in the host's workspace: {left}"
    return found
