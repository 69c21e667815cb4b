"""Finds which user of the host is at the other end of a TCP connection, by sock_diag(7)."""

import socket
import struct
from collections.abc import Callable, Container, Hashable

import trio

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, TCP_ESTABLISHED = 4, 20, 1, 1
ANY = 0xFFFFFFFF  # of states, and for a cookie that isn't known
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, port
ANSWER_STATE, ANSWER_UID = HEADER.size + 1, HEADER.size + 64  # offsets in struct inet_diag_msg

AnySocket = socket.socket | trio.socket.SocketType
FindUser = Callable[[AnySocket], Hashable]
"""The user that a connection is charged to."""


def find_user_but(agents: Container[int]) -> FindUser:
    """Charge a connection to its uid; agents, whose uids these are, count as one user, as a family may have many.

    One user, too, are all connections from elsewhere: another host, another network namespace.
    """

    def find(sock: AnySocket) -> Hashable:
        uid = find_uid(sock)
        return "agents" if uid is not None and uid in agents else uid

    return find


def find_uid(sock: AnySocket) -> int | None:
    """The uid that made the socket at the other end; None if it isn't of this network namespace, or isn't open."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, NETLINK_SOCK_DIAG) as netlink:
            netlink.send(_ask(sock.family, sock.getpeername(), sock.getsockname()))
            answer = netlink.recv(512)  # Linux answers at once
    except OSError:
        return None
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind != SOCK_DIAG_BY_FAMILY or answer[ANSWER_STATE] != TCP_ESTABLISHED:  # else the uid is 0
        return None
    uid: int = struct.unpack_from("=I", answer, ANSWER_UID)[0]
    return uid


def _ask(family: int, theirs: tuple[str, int], ours: tuple[str, int]) -> bytes:
    """A request for one socket: struct inet_diag_req_v2, with a struct inet_diag_sockid."""
    sockid = struct.pack("!HH", theirs[1], ours[1]) + _pack(family, theirs[0]) + _pack(family, ours[0])
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, ANY) + sockid + struct.pack("=III", 0, ANY, ANY)
    return HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + body


def _pack(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")
