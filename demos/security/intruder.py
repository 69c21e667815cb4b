"""Tries what no agent should be able to do, without harm: it reads, connects, and kills one process made for that.

The targets come in a message; each attempt's result goes to stdout as a line of JSON.
"""

import ctypes
import errno
import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentos import AgentOSClient

Targets = Mapping[str, Any]
TIMEOUT = 3.0  # seconds for an answer
PTRACE_SEIZE = 0x4206
CLONE_NEWUSER = 0x10000000
LOCAL = "127.0.0.1"
FAR = "192.0.2.1"  # for documentation only (RFC 5737); to connect a datagram socket sends nothing


def ask_for_a_name(targets: Targets) -> str:
    """A DNS query, as it would carry a secret out in a name."""
    name = b"".join(bytes([len(label)]) + label for label in (b"secret", b"example")) + b"\0"
    query = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.settimeout(TIMEOUT)
        server.connect((LOCAL, targets["dns"]))
        server.send(query)
        return f"{len(server.recv(512))} bytes of answer"


def connect(targets: Targets) -> str:
    with socket.create_connection((LOCAL, targets["tcp"]), TIMEOUT) as service:
        service.sendall(b"hello")
        return service.recv(64).decode()


def post(targets: Targets) -> str:
    with socket.create_connection((LOCAL, targets["tcp"]), TIMEOUT) as service:
        service.sendall(b"POST /stolen HTTP/1.0\r\nContent-Length: 6\r\n\r\nsecret")
        return service.recv(64).split(b"\r\n")[0].decode()


def find_a_way_out(_: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.connect((FAR, 53))
        return f"from {far.getsockname()[0]}"


def connect_by_name(targets: Targets) -> str:
    with socket.socket(socket.AF_UNIX) as service:
        service.settimeout(TIMEOUT)
        service.connect(f"\0{targets['abstract']}")
        service.sendall(b"unix")
        return service.recv(64).decode()


def read_passwords(_: Targets) -> str:
    return f"{len(Path('/etc/shadow').read_bytes())} bytes"


def read_key(targets: Targets) -> str:
    return Path(targets["home"], ".ssh/id_ed25519").read_text()


def change_startup(targets: Targets) -> str:
    with Path(targets["home"], ".bashrc").open("a") as file:
        return f"{file.write('echo I was here')} characters"


def list_processes(targets: Targets) -> str:
    return Path(f"/proc/{targets['victim']}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def read_environment(targets: Targets) -> str:
    return Path(f"/proc/{targets['victim']}/environ").read_text()


def read_kernels_memory(targets: Targets) -> str:
    """Its stack is enough: the environment that it was started with lies there."""
    maps = Path(f"/proc/{targets['kernel']}/maps").read_text()
    stack = re.search(r"^(\w+)-(\w+) .*\[stack]$", maps, re.MULTILINE)
    assert stack is not None
    begin, end = (int(number, 16) for number in stack.groups())
    with open(f"/proc/{targets['kernel']}/mem", "rb", buffering=0) as memory:
        memory.seek(begin)
        return memory.read(end - begin).decode(errors="replace").rpartition("DEMO_API_KEY=")[2][:64]


def trace(targets: Targets) -> str:
    call("ptrace", PTRACE_SEIZE, targets["victim"], None, None)
    return "seized"  # until we end


def end_process(targets: Targets) -> str:
    os.kill(targets["victim"], 9)
    return "killed"


def become_root(_: Targets) -> str:
    """Root of a user namespace is where most ways out of a sandbox begin."""
    call("unshare", CLONE_NEWUSER)
    return "all capabilities"


def call(name: str, *args: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


ATTEMPTS = {  # the last ones change our identity or our target
    "dns": ask_for_a_name,
    "tcp": connect,
    "http": post,
    "route": find_a_way_out,
    "unix": connect_by_name,
    "shadow": read_passwords,
    "ssh": read_key,
    "bashrc": change_startup,
    "processes": list_processes,
    "environ": read_environment,
    "memory": read_kernels_memory,
    "trace": trace,
    "kill": end_process,
    "namespace": become_root,
}

if __name__ == "__main__":
    with AgentOSClient() as kernel:
        kernel.hello()
        targets = kernel.recv_messages(timeout=30)["messages"][0]["message"]
    for name, attempt in ATTEMPTS.items():
        try:
            said = {"attempt": name, "done": True, "detail": attempt(targets)}
        except TimeoutError:
            said = {"attempt": name, "done": False, "detail": "no answer"}
        except OSError as error:
            said = {"attempt": name, "done": False, "detail": errno.errorcode.get(error.errno or 0, str(error))}
        print(json.dumps(said), flush=True)
