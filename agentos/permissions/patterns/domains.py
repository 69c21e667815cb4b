"""Domain patterns for HTTP permissions, and normalization of the host in a URL."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address

import idna
from msgspec import Struct

from .base import BadPattern

FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]|\s")  # in a URL: programs parse these differently
URL = re.compile(r"(?i:https?)://(?P<authority>[^/?#]*)")
AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

MAX_HOST_LENGTH = 1000  # characters of a host before normalization; 253 after it


class DomainPattern(Struct, frozen=True):
    """A pattern of hosts; ``what`` is a host as normalized by ``host_of``.

    ``*.example.com`` matches subdomains at any depth, but not ``example.com`` itself. ``*`` alone matches every host.
    An IP address is matched only by ``*`` and by the same address.
    """

    text: str
    host: str | None  # matches exactly this host
    suffix: str | None  # matches any host with this ending

    def matches(self, what: str, *, deny: bool) -> bool:
        return what == self.host or (self.suffix is not None and what.endswith(self.suffix))

    def covers(self, other: "DomainPattern", *, deny: bool) -> bool:
        if other.host is not None:
            return self.matches(other.host, deny=deny)
        return self.suffix is not None and (other.suffix or "").endswith(self.suffix)


def parse_domain_pattern(text: str) -> DomainPattern:
    """Parse a domain pattern; raises ``BadPattern`` if it is invalid or can never match a host."""
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '*' for every host")
    if text == "*":
        return DomainPattern(text, None, "")
    if "/" in text:
        raise BadPattern(f"{text!r}: write the host alone, without 'https://' and without a path, as in 'example.com'")
    if re.search(r"(^[^:]*|\]):[^:]*$", text):
        raise BadPattern(f"{text!r}: a pattern has no port and holds for all of them; write the host alone")
    if text.startswith("."):
        raise BadPattern(f"{text!r}: write '*{text}' for its subdomains, and '{text[1:]}' for itself")
    name = text.removeprefix("*.")
    if "*" in name:
        raise BadPattern(f"{text!r}: a '*' stands alone or for whole subdomains in front, as in '*.example.com'")
    try:
        host = _normalize_host(name)
    except ValueError as error:
        raise BadPattern(f"{text!r}: {error}") from None
    if name == text:
        return DomainPattern(text, host, None)
    if _is_address(host):
        raise BadPattern(f"{text!r} can never match, an IP address has no subdomains: write {host!r}, or '*'")
    return DomainPattern(text, None, "." + host)


def host_of(url: str) -> str:
    """The normalized host of an http or https URL.

    Names are in lower case, in ASCII (IDNA), without a trailing dot. An IP address in any notation becomes four decimal
    numbers, or the shortest IPv6 form without brackets. Raises ``ValueError`` if the URL has no host or an ambiguous
    one.
    """
    if FORBIDDEN.search(url):
        raise ValueError("a URL has no spaces, no control characters and no backslashes in it")
    parts = URL.match(url)
    if parts is None:
        raise ValueError("a URL begins with http:// or https://")
    if "@" in parts["authority"]:
        raise ValueError("a URL with a user name or a password before its host is not accepted")
    authority = AUTHORITY.fullmatch(parts["authority"])
    if authority is None or int(authority["port"] or 0) > 65535:
        raise ValueError("behind a URL's host stands nothing, or a port between 0 and 65535")
    return _normalize_host(authority["host"])


def _normalize_host(text: str) -> str:
    if len(text) > MAX_HOST_LENGTH or FORBIDDEN.search(text):
        raise ValueError("that is no host's name")
    if ":" in text or text.startswith("["):
        return _normalize_ipv6(text.removeprefix("[").removesuffix("]"))
    name = (text.lower() if text.isascii() else _to_ascii(text)).removesuffix(".")
    labels = name.split(".")
    if not name or len(name) > 253 or not all(map(LABEL.fullmatch, labels)):
        raise ValueError("a host's name is made of letters, digits and '-', in parts of 1 to 63 between dots")
    if NUMBER.fullmatch(labels[-1]):
        return _normalize_ipv4(name)
    if any(label.startswith("xn--") and _to_ascii(_to_unicode(label)) != label for label in labels):
        raise ValueError("an internationalised name (xn--…) has to be written as the DNS has it")
    return name


def _to_ascii(text: str) -> str:
    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except UnicodeError as error:
        raise ValueError(f"that is no internationalised name: {error}") from None


def _to_unicode(label: str) -> str:
    try:
        return idna.decode(label)
    except UnicodeError as error:
        raise ValueError(f"that is no internationalised name: {error}") from None


def _normalize_ipv4(name: str) -> str:
    """Parse IPv4 as the C library does, and so every resolver: 0x7f.1 and 2130706433 are 127.0.0.1."""
    try:
        return str(IPv4Address(socket.inet_aton(name)))
    except OSError:
        raise ValueError("a host that ends in a number is an IPv4 address, and this is none") from None


def _normalize_ipv6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        raise ValueError("what has a colon in it is an IPv6 address, without a zone, and this is none")
    return str(address.ipv4_mapped or address)  # ::ffff:127.0.0.1 connects over IPv4


def _is_address(host: str) -> bool:
    return ":" in host or host.rpartition(".")[2].isdigit()
