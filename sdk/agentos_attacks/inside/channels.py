"""Attacks over sockets, shared memory, keys and networks of other processes."""

import ctypes
import errno
import os
import socket
from functools import partial

from .frame import Check, Result, Targets, any_of, blocked, call, escaped, libc, none_reached, read_some

_CREATE_KEYRING = 1


def unix_socket_path(targets: Targets) -> Result:
    return any_of((path, partial(_connect, path)) for path in targets["sockets"])


def unix_socket_abstract(targets: Targets) -> Result:
    name = targets["abstract"]
    return any_of((kind.name, partial(_connect, f"\0{name}", kind)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))


def _connect(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> str:
    with socket.socket(socket.AF_UNIX, kind) as ours:
        ours.connect(address)
        return "connected"


def sysv_shm(targets: Targets) -> Result:
    return any_of([("shmget", lambda: f"segment {libc('shmget', targets['shm_key'], 4096, 0)}")])


def kernel_keyring(targets: Targets) -> Result:
    room = ctypes.create_string_buffer(256)

    def read(serial: int) -> str:
        size = call("keyctl", 11, serial, room, 256)
        return room.raw[:size].decode(errors="replace")

    def search(ring: int) -> str:
        return f"key {call('keyctl', 10, ring, b'user', targets['key_name'].encode(), 0)}"

    reads = [("read it", lambda: read(targets["key"]))] if targets["key"] else []
    searches = [(f"search {ring}", partial(search, ring)) for ring in (-4, -3, -5)]
    asks = [("request_key", lambda: call("request_key", b"user", targets["key_name"].encode(), None, 0))]
    return any_of([*reads, *searches, *asks])


def host_loopback_tcp(targets: Targets) -> Result:
    def connect(family: socket.AddressFamily, address: str) -> str:
        with socket.socket(family) as ours:
            ours.settimeout(2)
            ours.connect((address, targets["port"]))
            return "connected"

    four = [(socket.AF_INET, address) for address in ("127.0.0.1", "0.0.0.0", "127.9.9.9")]
    six = [(socket.AF_INET6, address) for address in ("::1", "::ffff:127.0.0.1")]
    return any_of((to, partial(connect, family, to)) for family, to in (*four, *six))


def route_to_metadata_or_internet(_: Targets) -> Result:
    """Connecting a UDP socket sends nothing; it only looks up a route."""

    def route(family: socket.AddressFamily, address: str) -> str:
        with socket.socket(family, socket.SOCK_DGRAM) as ours:
            ours.connect((address, 53))
            return f"from {ours.getsockname()[0]}"

    four = [(socket.AF_INET, to) for to in ("169.254.169.254", "1.1.1.1", "10.0.0.1", "192.168.0.1", "172.17.0.1")]
    six = [(socket.AF_INET6, to) for to in ("2606:4700:4700::1111", "fd00:ec2::254")]
    return any_of((to, partial(route, family, to)) for family, to in (*four, *six))


def _open_socket(family: int, kind: int, protocol: int) -> str:
    socket.socket(family, kind, protocol).close()
    return "made"


def raw_sockets(_: Targets) -> Result:
    wanted = [(2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0), (17, 2, 0x0300), (2, 10, 0)]
    return any_of((str(one), partial(_open_socket, *one)) for one in wanted)


def odd_socket_families(_: Targets) -> Result:
    """Sockets of all other families and kinds. VSOCK reaches the hypervisor from any network namespace."""
    kinds = [(family, kind) for family in range(47) if family not in (1, 2, 10) for kind in (1, 2, 3, 5)]
    return any_of((f"family {one[0]}", partial(_open_socket, *one, 0)) for one in kinds)


def odd_socket_protocols(_: Targets) -> Result:
    wanted = {
        "SCTP": (2, 1, 132),
        "DCCP": (2, 6, 33),
        "MPTCP": (2, 1, 262),
        "UDP-Lite": (2, 2, 136),
        "L2TP": (2, 2, 115),
        "SMC": (43, 1, 0),
        "SMC over INET": (2, 1, 256),
        "ping": (2, 2, 1),
        "ping 6": (10, 2, 58),
    }
    return any_of((name, partial(_open_socket, *one)) for name, one in wanted.items())


def odd_socket_pairs(_: Targets) -> Result:
    room = ctypes.create_string_buffer(8)
    families = [family for family in range(47) if family != 1]
    pairs = [(f"pair of {one}", partial(libc, "socketpair", one, 1, 0, room)) for one in families]
    high = [(f"{one} with high bits", partial(libc, "socket", 1 << 32 | one, 3, 0)) for one in (16, 17, 38, 40)]
    return any_of([*pairs, *high])


def see_the_hosts_network(targets: Targets) -> Result:
    def devices() -> str | None:
        lines = read_some("/proc/self/net/dev", 1 << 16).decode().splitlines()[2:]
        return " ".join(name for name in (line.split(":")[0].strip() for line in lines) if name != "lo") or None

    def listeners() -> str | None:
        port = f":{targets['port']:04X}".encode()
        return "its port" if port in read_some("/proc/self/net/tcp", 1 << 16) else None

    def sockets() -> str | None:
        return "its sockets" if targets["abstract"].encode() in read_some("/proc/self/net/unix", 1 << 16) else None

    def routes() -> str | None:
        return "routes" if len(read_some("/proc/self/net/route").splitlines()) > 1 else None

    return any_of([("dev", devices), ("tcp", listeners), ("unix", sockets), ("route", routes)])


def message_queue(targets: Targets) -> Result:
    return any_of([("mq_open", lambda: call("mq_open", targets["token"].encode(), os.O_RDONLY, 0, None))])


def persistent_keyring(_: Targets) -> Result:
    return none_reached(
        [
            ("persistent", lambda: call("keyctl", 22, -1, -4)),
            ("join a session", lambda: call("keyctl", _CREATE_KEYRING, b"planted")),
            ("add_key", lambda: call("add_key", b"user", b"planted", b"x", 1, -4)),
            ("request_key", lambda: call("request_key", b"user", b"planted", None, -4)),
        ]
    )


def peer_of_its_own_socket(_: Targets) -> Result:
    """The peer of its own socket pair: host uids would show if ids weren't mapped."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = int.from_bytes(found[:4], "little"), int.from_bytes(found[4:8], "little")
    if uid == os.getuid() and os.path.exists(f"/proc/{pid}"):
        return blocked("numbers of its own namespaces")
    return escaped(f"pid {pid}, uid {uid}, {errno.errorcode.get(0, '')}")


CHECKS = (
    Check("ipc", unix_socket_path, "another program's socket by its path", "a root of its own"),
    Check("ipc", unix_socket_abstract, "another program's abstract socket", "network namespace; Landlock scope"),
    Check("ipc", sysv_shm, "another program's shared memory", "IPC namespace"),
    Check("ipc", kernel_keyring, "keys of the host user's", "user namespace; seccomp"),
    Check("net", host_loopback_tcp, "services on the host's loopback", "network namespace"),
    Check(
        "net",
        route_to_metadata_or_internet,
        "a way to the metadata service or anywhere",
        "network namespace without routes",
    ),
    Check("net", raw_sockets, "SOCK_RAW, AF_PACKET", "no capability; seccomp"),
    Check("surface", odd_socket_families, "VSOCK, ALG, NETLINK, XDP and others", "seccomp: UNIX, INET, INET6 alone"),
)
FURTHER = (
    Check("net", odd_socket_protocols, "SCTP, DCCP, MPTCP, SMC, ping", "seccomp; network namespace"),
    Check("net", odd_socket_pairs, "pairs of any family, families beyond 32 bits", "seccomp"),
    Check("net", see_the_hosts_network, "interfaces, ports, sockets, routes in /proc", "network namespace"),
    Check("ipc", message_queue, "a message queue of the host's", "IPC namespace"),
    Check("ipc", persistent_keyring, "keyrings that outlive it", "seccomp"),
    Check("ipc", peer_of_its_own_socket, "the host's pids and uids through SO_PEERCRED", "PID and user namespace"),
)
