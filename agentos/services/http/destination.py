"""Destination: what one outgoing request or tunnel reaches. A URL is parsed here, once, and never normalized.

What two programs could read differently is an error instead: a request is built from the parts that were judged.
"""

import re
from ipaddress import IPv4Address, IPv6Address

import idna
from msgspec import Struct

from .addresses import address_text, format_authority

SCHEME_PORTS = {"http": 80, "https": 443}
MAX_URL_LENGTH = 8192  # characters
MAX_NAME_LENGTH = 253  # characters of a host's name

FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]|\s")  # in a URL: programs parse these differently
URL = re.compile(r"(?i:(?P<scheme>https?))://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?:#.*)?")
AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[1-9][0-9]{0,4}))?")
TARGET = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*")  # ASCII; a '%' begins an encoded byte
METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Destination(Struct, frozen=True):
    """The object of the right ``http``. ``method`` and ``path`` are ``None`` for a tunnel, whose content is hidden.

    ``host`` is in lower case and ASCII (IDNA), an IPv6 address without brackets. ``path`` is exactly as it is sent,
    without the query, which may hold secrets.
    """

    method: str | None
    host: str
    port: int
    path: str | None
    scheme: str = "https"

    @property
    def authority(self) -> str:
        """Host and port as in a CONNECT request."""
        return format_authority(self.host, self.port)

    @property
    def exact_text(self) -> str:
        """What a remembered answer covers: method, origin and path, with any query."""
        return f"{self.method or 'CONNECT'} {self.scheme}://{self.authority}{self.path or ''}"

    @property
    def wide_text(self) -> str | None:
        """What a widened answer covers: method and origin, with any path; ``None`` for a tunnel, which has none."""
        return f"{self.method} {self.scheme}://{self.authority} (any path)" if self.method is not None else None

    def __str__(self) -> str:
        if self.method is None:
            return f"CONNECT {self.authority}"
        where = self.authority
        if self.port == SCHEME_PORTS[self.scheme]:
            where = where.rpartition(":")[0]
        return f"{self.method} {self.scheme}://{where}{self.path}"


def parse_url(url: str, method: str) -> tuple[Destination, str]:
    """The destination of a request, and its target: path and query as they are sent; a fragment isn't sent.

    Raises ``ValueError`` with a sentence that doesn't repeat the URL, which may hold a password.
    """
    if len(url) > MAX_URL_LENGTH:
        raise ValueError(f"a URL has at most {MAX_URL_LENGTH} characters")
    if FORBIDDEN.search(url):
        raise ValueError("a URL has no spaces, no control characters and no backslashes in it")
    parts = URL.fullmatch(url)
    if parts is None:
        raise ValueError("a URL begins with http:// or https://")
    scheme = parts["scheme"].lower()
    host, port = _parse_authority(parts["authority"])
    target = parts["target"] if parts["target"].startswith("/") else f"/{parts['target']}"
    if not TARGET.fullmatch(target):
        raise ValueError("the path and query of a URL are ASCII: write other characters, and '%' itself, as %XX")
    if method == "CONNECT" or not METHOD.fullmatch(method):
        raise ValueError("a method is a word in upper case such as GET or POST, and not CONNECT")
    path = target.partition("?")[0]
    return Destination(method, host, port or SCHEME_PORTS[scheme], path, scheme), target


def parse_tunnel(authority: str) -> Destination:
    """The destination of a CONNECT request to ``HOST:PORT``; raises ``ValueError``."""
    host, port = _parse_authority(authority)
    if port is None:
        raise ValueError("a tunnel needs a port, as in example.com:443")
    return Destination(None, host, port, None)


def parse_destination(text: str) -> Destination:
    """A destination from text, as a person writes it: ``GET https://host/path``, ``CONNECT host:443``, URL or host.

    Without a method it is a GET. Raises ``ValueError``.
    """
    method, space, rest = text.partition(" ")
    if not space:
        method, rest = "GET", text
    if method == "CONNECT":
        return parse_tunnel(rest)
    return parse_url(rest if "://" in rest else f"https://{rest}", method)[0]


def parse_host(text: str) -> str:
    """A host as :class:`Destination` has it; an IPv6 address has brackets in ``text``. Raises ``ValueError``."""
    if len(text) > MAX_URL_LENGTH or FORBIDDEN.search(text):
        raise ValueError("that is no host's name")
    if ":" in text or text.startswith("["):
        return _parse_ipv6(text)
    if len(text) > MAX_NAME_LENGTH:  # as ASCII it is no shorter, and converting it takes long
        raise ValueError(f"a host's name has at most {MAX_NAME_LENGTH} characters")
    labels = [label.lower() if label.isascii() else _to_ascii(label) for label in text.split(".")]
    name = ".".join(labels)
    if labels[-1] == "" and len(labels) > 1:
        raise ValueError("a host's name ends without a dot: leave it out")
    if len(name) > MAX_NAME_LENGTH or not all(map(LABEL.fullmatch, labels)):
        raise ValueError("a host's name is made of letters, digits and '-', in parts of 1 to 63 between dots")
    if NUMBER.fullmatch(labels[-1]):
        return _parse_ipv4(name)
    for label in labels:
        if label.startswith("xn--") and _to_ascii(_to_unicode(label)) != label:
            raise ValueError("an internationalised name (xn--…) has to be written as the DNS has it")
    return name


def is_address(host: str) -> bool:
    """Whether a parsed host is an IP address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def _parse_authority(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise ValueError("a URL with a user name or a password before its host is not accepted")
    parts = AUTHORITY.fullmatch(text)
    port = int(parts["port"]) if parts is not None and parts["port"] else None
    if parts is None or (port or 0) > 65535:
        raise ValueError("behind a URL's host stands nothing, or a port between 1 and 65535")
    return parse_host(parts["host"]), port


def _parse_ipv4(name: str) -> str:
    try:
        return str(IPv4Address(name))
    except ValueError:
        raise ValueError(
            "a host that ends in a number is an IPv4 address of four decimal numbers, such as 192.0.2.1"
        ) from None


def _parse_ipv6(text: str) -> str:
    inner = text.removeprefix("[").removesuffix("]")
    try:
        address = IPv6Address(inner)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None or text != f"[{inner}]":
        raise ValueError("what has a colon in it is an IPv6 address in brackets, without a zone, and this is none")
    text = address_text(address)
    if text != inner.lower():
        raise ValueError(f"an IPv6 address is written in its shortest form: [{text}]")
    return text


def _to_ascii(label: str) -> str:
    try:
        return idna.alabel(label.lower()).decode("ascii")
    except UnicodeError as error:
        raise ValueError(f"that is no internationalised name: {error}") from None


def _to_unicode(label: str) -> str:
    try:
        return idna.ulabel(label)
    except UnicodeError as error:
        raise ValueError(f"that is no internationalised name: {error}") from None
