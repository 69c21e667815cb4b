"""Set up a sandbox's network: bring loopback up, route addresses to it, and bind sockets for the kernel."""

import fcntl
import os
import socket
import struct

from agentos.sandbox import steps as s

from . import messages

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK = 1  # index of lo, the first interface of each network namespace
_FIRST_OWN_PORT = 1024  # net.ipv4.ip_unprivileged_port_start of a new namespace: programs inside can't bind below
_FDS_PER_MESSAGE = 8

# rtnetlink(7): RTM_NEWROUTE with NLM_F_REQUEST, _ACK, _EXCL, _CREATE; struct nlmsghdr, rtmsg and rtattr; NLMSG_ERROR.
_NEW_ROUTE, _NEW_ROUTE_FLAGS = 24, 0x1 | 0x4 | 0x200 | 0x400
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
_DESTINATION, _OUT_INTERFACE = 1, 4
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_ERROR = struct.Struct("=i")


def loopback_up(_: s.LoopbackUp) -> None:
    """Set IFF_UP on lo; its other flags can't be changed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def route_to_loopback(step: s.RouteToLoopback) -> None:
    """Add a route of type ``local`` to the table of local addresses, as ``ip route add local NETWORK dev lo``."""
    body = _ROUTE.pack(
        *(socket.AF_INET, step.prefix, 0, 0), *(_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL), 0
    )
    for kind, value in (
        (_DESTINATION, socket.inet_aton(step.address)),
        (_OUT_INTERFACE, struct.pack("=I", _LOOPBACK)),
    ):
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value
    request = _HEADER.pack(_HEADER.size + len(body), _NEW_ROUTE, _NEW_ROUTE_FLAGS, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.send(request)
        number = -_ERROR.unpack_from(netlink.recv(4096), _HEADER.size)[0]
    if number:
        raise OSError(number, os.strerror(number))


def listen(step: s.Listen, control: socket.socket) -> None:
    """Bind the sockets and send them to the kernel."""
    for start in range(0, len(step.addresses), _FDS_PER_MESSAGE):
        batch = [_bind(*address) for address in step.addresses[start : start + _FDS_PER_MESSAGE]]
        names = [f"{messages.SOCKET_PREFIX}{start + number}" for number in range(len(batch))]
        messages.send(control, messages.LISTENING, {name: one.fileno() for name, one in zip(names, batch, strict=True)})
        for one in batch:
            one.close()


def _bind(protocol: str, address: str, port: int) -> socket.socket:
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    bound = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if protocol == "tcp":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if 0 < port < _FIRST_OWN_PORT:  # 0.0.0.0 beside 127.0.0.1: only we can bind there, so no program takes a share
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, port))
        if protocol == "tcp":
            bound.listen()
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{protocol} {address}:{port}") from None
    return bound
