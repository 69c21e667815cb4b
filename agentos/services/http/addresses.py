"""IP addresses that no name and no wildcard grants: only a rule with exactly this address and port allows them."""

import socket
import struct
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

RANGES: Final[tuple[tuple[IPv4Network | IPv6Network, str], ...]] = tuple(
    (ip_network(network), name)
    for network, name in (
        ("169.254.169.254/32", "a cloud's metadata service"),
        ("168.63.129.16/32", "a cloud's metadata service"),
        ("100.100.100.200/32", "a cloud's metadata service"),
        ("fd00:ec2::254/128", "a cloud's metadata service"),
        ("127.0.0.0/8", "loopback"),
        ("::1/128", "loopback"),
        ("0.0.0.0/8", "this host (0.0.0.0/8)"),
        ("::/128", "this host (::)"),
        ("10.0.0.0/8", "a private network"),
        ("172.16.0.0/12", "a private network"),
        ("192.168.0.0/16", "a private network"),
        ("fc00::/7", "a private network (fc00::/7)"),
        ("169.254.0.0/16", "link-local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("100.64.0.0/10", "a provider's private network (100.64.0.0/10)"),
        ("192.0.0.0/24", "reserved (192.0.0.0/24)"),
        ("198.18.0.0/15", "reserved (198.18.0.0/15)"),
        ("224.0.0.0/4", "multicast"),
        ("ff00::/8", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved (240.0.0.0/4)"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6 (::ffff:0:0/96)"),
        ("::ffff:0:0:0/96", "an IPv4 address in IPv6 (::ffff:0:0:0/96)"),
        ("::/96", "an IPv4 address in IPv6 (::/96)"),
        ("64:ff9b::/96", "an IPv4 address in IPv6 (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address in IPv6 (NAT64)"),
        ("2002::/16", "an IPv4 address in IPv6 (6to4)"),
        ("2001::/32", "an IPv4 address in IPv6 (Teredo)"),
    )
)
RTM_NEWROUTE, RTM_GETROUTE, RTA_DST = 24, 26, 1  # linux/rtnetlink.h
RTN_UNICAST = 1
NLM_F_REQUEST = 1


def address_text(address: Address) -> str:
    """The address as a :class:`~.destination.Destination` has it: RFC 5952, the same in all versions of Python."""
    return socket.inet_ntop(_family(address), address.packed)


def format_authority(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def forbidden_reason(address: Address, port: int) -> str | None:
    """Why only a rule for exactly this address and port allows it; ``None`` if any rule does."""
    found = find_range(address) or ("an address of this host" if is_local(address) else None)
    if found is None:
        return None
    text = address_text(address)
    return f"{text} is {found}: only a rule for {format_authority(text, port)} allows it"


def find_range(address: Address) -> str | None:
    """The name of the forbidden range with this address, or with the IPv4 address in it."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "an address with a zone"
    found = next((name for network, name in RANGES if address.version == network.version and address in network), None)
    inner = embedded_ipv4(address)
    return (find_range(inner) if inner is not None else None) or found


def embedded_ipv4(address: Address) -> IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address may reach, where its form has one."""
    if isinstance(address, IPv4Address):
        return None
    number = int(address)
    if number >> 112 == 0x2002:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    if number >> 32 in (0, 0xFFFF, 0xFFFF << 16, 0x64FF9B << 64) and number > 1:
        return IPv4Address(number & 0xFFFFFFFF)
    return None


def is_local(address: Address) -> bool:
    """Whether Linux delivers packets to this address on this host, or to a whole network, by its routing tables.

    Also a public address of one of the host's interfaces is local. Takes some 20 µs. Raises ``OSError`` without
    netlink.
    """
    packed = address.packed
    route = struct.pack("=BBBBBBBBI", _family(address), len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    attribute = struct.pack("=HH", 4 + len(packed), RTA_DST) + packed
    length = 16 + len(route) + len(attribute)
    header = struct.pack("=IHHII", length, RTM_GETROUTE, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.send(header + route + attribute)
        reply = netlink.recv(8192)
    _, kind = struct.unpack_from("=IH", reply)
    if kind != RTM_NEWROUTE:  # NLMSG_ERROR: there is no route, so no connection either
        return False
    route_type: int = reply[16 + 7]
    return route_type != RTN_UNICAST


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET
