"""Domain patterns, ``[METHODS ]host[:port][/path/**]``: the requests and tunnels that a rule matches."""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

from msgspec import Struct

from agentos.services.http.addresses import find_range, format_authority
from agentos.services.http.destination import METHOD, SCHEME_PORTS, TARGET, Destination, is_address, parse_host

from .base import BadPattern

DEFAULT_PORTS = frozenset(SCHEME_PORTS.values())  # of a pattern without a port
METHODS = re.compile(r"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)(?:,[A-Z-]*)*")
PORT = re.compile(r"[1-9][0-9]{0,4}")
WHERE = re.compile(r"(?P<host>(?:\*\.)?\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
AMBIGUOUS = re.compile(
    r"//|;|%(?:2f|5c|25|3b|[01][0-9a-f]|7f|c[01])|/(?:\.|%2e){1,2}(?:/|$)",
    re.IGNORECASE,
)
"""What servers read differently in a path: empty and dot segments, parameters, encoded separators and controls."""
AMBIGUOUS_SIGNS = ("%", ";", "//", "/.")  # each ambiguous path has one


class DomainPattern(Struct, frozen=True):
    """A pattern of destinations. ``ports``, ``methods`` and ``path`` are ``None`` if they are not limited.

    ``*.example.com`` matches subdomains at any depth, but not ``example.com`` itself. ``*`` alone matches every host;
    but a loopback, private or other address that :func:`~agentos.services.http.addresses.find_range` names is granted
    only by a pattern with exactly this address and port. A grant with methods or a path matches no tunnel, where both
    are hidden, and one with a path no ambiguous path. A denial matches all that it could mean: tunnels, ambiguous
    paths, any port if it names none, and paths in other case or encoding.
    """

    text: str
    host: str | None  # matches exactly this host
    suffix: str | None  # matches any host with this ending
    ports: frozenset[int] | None
    methods: frozenset[str] | None
    path: str | None  # exactly this path; one that ends with "/**" is cut there and matches all below it
    below: bool
    loose_path: str  # of a denial: decoded, in lower case, without a slash at its end

    def matches(self, what: Destination, *, deny: bool) -> bool:
        if not self.matches_host(what, deny):
            return False
        if what.method is None:
            return deny or not self.is_hidden
        if self.methods is not None and what.method not in self.methods:
            return False
        return self.path is None or self._matches_path(what.path or "/", deny)

    def overlaps(self, other: "DomainPattern") -> bool:
        """Whether some request matches both, of two patterns with one host each."""
        one_of_each = ((self.ports, other.ports), (self.methods, other.methods))
        if self.host != other.host or any(a is not None and b is not None and not a & b for a, b in one_of_each):
            return False
        return self._begins(other) or other._begins(self)

    def _begins(self, other: "DomainPattern") -> bool:
        """Whether it grants the path of ``other``, or those below it."""
        if self.path is None or other.path is None or self.path == other.path:
            return True
        return self.below and other.path.startswith(self.path)

    def names_address(self, what: Destination) -> bool:
        """Whether it grants this destination by exactly its host and port."""
        return what.host == self.host and self.ports == frozenset({what.port}) and self.matches(what, deny=False)

    def names_host(self, host: str) -> bool:
        """Whether it is about this host, with some port, method and path."""
        return host == self.host or (self.suffix is not None and host.endswith(self.suffix))

    @property
    def is_hidden(self) -> bool:
        """Whether it depends on what a tunnel hides."""
        return self.methods is not None or self.path is not None

    @property
    def is_for_default_ports(self) -> bool:
        """Whether it names no port: a denial is about all of them then."""
        return self.ports is None or self.ports is DEFAULT_PORTS

    def matches_host(self, what: Destination, deny: bool) -> bool:
        """Whether it matches the host and the port."""
        ports = self._ports(deny)
        if ports is not None and what.port not in ports:
            return False
        if what.host == self.host:
            return deny or len(ports or ()) == 1 or forbidden_range(what.host) is None
        if self.suffix is None or not what.host.endswith(self.suffix):
            return False
        return deny or forbidden_range(what.host) is None

    def _ports(self, deny: bool) -> frozenset[int] | None:
        return None if deny and self.ports is DEFAULT_PORTS else self.ports

    def _matches_path(self, path: str, deny: bool) -> bool:
        assert self.path is not None
        if is_ambiguous(path):
            return deny
        if not deny:
            return path.startswith(self.path) if self.below else path == self.path
        loose = loosen(path[: 3 * len(self.loose_path) + 4])  # an encoded byte has three characters
        return f"{loose}/".startswith(f"{self.loose_path}/") if self.below else loose == self.loose_path

    @property
    def first_segment(self) -> str | None:
        """:func:`first_segment` of each path that it matches, unless that is ``None``; ``None`` if these differ."""
        return first_segment(self.path) if self.path is not None and self.loose_path else None

    def covers(self, other: "DomainPattern", *, deny: bool) -> bool:
        return (
            self._covers_host(other, deny)
            and (self.methods is None or (other.methods is not None and other.methods <= self.methods))
            and (self.path is None or self._covers_path(other, deny))
        )

    def _covers_host(self, other: "DomainPattern", deny: bool) -> bool:
        ports = self._ports(deny)
        if ports is not None and (other.ports is None or not other.ports <= ports):
            return False
        if other.host is None:
            return self.suffix is not None and (other.suffix or "").endswith(self.suffix)
        if not deny and forbidden_range(other.host) is not None:
            return self.host == other.host and self.ports == other.ports
        return other.host == self.host or (self.suffix is not None and other.host.endswith(self.suffix))

    def _covers_path(self, other: "DomainPattern", deny: bool) -> bool:
        if other.path is None or (other.below and not self.below):
            return False
        if deny:
            mine, theirs = self.loose_path, other.loose_path
            return f"{theirs}/".startswith(f"{mine}/") if self.below else theirs == mine
        assert self.path is not None
        return other.path.startswith(self.path) if self.below else other.path == self.path


def parse_domain_pattern(text: str) -> DomainPattern:
    """Parse a domain pattern; raises ``BadPattern`` if it is invalid or can never match."""
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '*' for every host")
    if METHODS.fullmatch(text):
        raise BadPattern(
            f"{text!r}: these are methods without a host: write '{text} *' for every host, or a host instead"
        )
    words, _, rest = text.rpartition(" ")
    methods = _parse_methods(text, words) if " " in text else None
    if "://" in rest:
        raise BadPattern(f"{text!r}: write the host without 'https://', as in 'example.com' or 'example.com/path/**'")
    where, slash, path = rest.partition("/")
    host, suffix, ports = _parse_where(text, where)
    if slash and host is not None and is_address(host) and path.isdigit():
        raise BadPattern(f"{text!r}: a pattern means one address, not a network")
    cut, below = _parse_path(text, f"/{path}") if slash else (None, False)
    return DomainPattern(text, host, suffix, ports, methods, cut, below, loosen(cut or ""))


def check_can_grant(pattern: DomainPattern) -> None:
    """Raise ``BadPattern`` for an address that is granted only with its port, which the pattern lacks."""
    found = forbidden_range(pattern.host) if pattern.host is not None else None
    if found is not None and len(pattern.ports or ()) != 1:
        host = str(pattern.host)
        where = format_authority(host, 443)
        raise BadPattern(f"{pattern.text!r}: {host} is {found} and granted only with its port, as in {where!r}")


def explain_refusal(what: Destination, granted: Iterable[DomainPattern]) -> str:
    """What keeps the grants from matching, to append to a refusal; empty if it is nothing but the host."""
    if (found := forbidden_range(what.host)) is not None:
        return f"; {what.host} is {found}: only a rule for {what.authority} allows it"
    if what.method is None:
        why = "allows no tunnel, which hides methods and paths: only a rule without them does"
    elif is_ambiguous(what.path or "/"):
        why = "matches no path with '//', ';', '.', '..' or an encoded separator in it: only a rule without a path does"
    else:
        return ""
    near = (pattern for pattern in granted if pattern.is_hidden and pattern.matches_host(what, deny=False))
    return next((f"; {pattern.text!r} {why}" for pattern in near), "")


@lru_cache(1024)
def forbidden_range(host: str) -> str | None:
    """The name of the range if the host is an address that has to be granted by address and port."""
    return find_range(ip_address(host)) if is_address(host) else None


@lru_cache(256)
def is_ambiguous(path: str) -> bool:
    """Whether servers could read the path differently."""
    if not any(sign in path for sign in AMBIGUOUS_SIGNS):  # tells most paths in a tenth of the time
        return False
    return AMBIGUOUS.search(path) is not None


def first_segment(path: str) -> str | None:
    """What stands between the first two slashes, as the most lenient server reads it; ``None`` if it is ambiguous."""
    return None if is_ambiguous(path) else loosen(path.split("/", 2)[1])


def loosen(path: str) -> str:
    """The path as the most lenient server reads it."""
    return unquote(path, "latin-1").lower().rstrip("/")


def _parse_methods(text: str, words: str) -> frozenset[str]:
    methods = words.split(",")
    for method in methods:
        if not METHOD.fullmatch(method) or method == "CONNECT":
            raise BadPattern(
                f"{text!r}: before a space stand methods in upper case, without CONNECT, separated by commas, "
                "as in 'GET,HEAD example.com'"
            )
    return frozenset(methods)


def _parse_where(text: str, where: str) -> tuple[str | None, str | None, frozenset[int] | None]:
    """Host, suffix and ports of a pattern."""
    if where.count(":") > 1 and "[" not in where:
        where = f"[{where}]"
    parts = WHERE.fullmatch(where)
    if parts is None:
        raise BadPattern(f"{text!r}: behind an address in brackets stands nothing, or ':' and a port")
    name, port = parts["host"], parts["port"]
    ports = DEFAULT_PORTS if port is None else None if port == "*" else frozenset({_parse_port(text, port)})
    if name == "*":
        return None, "", ports
    if name.startswith("."):
        raise BadPattern(f"{text!r}: write '*{name}' for its subdomains, and '{name[1:]}' for itself")
    below = name.removeprefix("*.")
    if "*" in below:
        raise BadPattern(f"{text!r}: a '*' stands alone or for whole subdomains in front, as in '*.example.com'")
    try:
        host = parse_host(below)
    except ValueError as error:
        raise BadPattern(f"{text!r}: {error}") from None
    if below == name:
        return host, None, ports
    if is_address(host):
        raise BadPattern(f"{text!r} can never match, an IP address has no subdomains: write {host!r}, or '*'")
    return None, f".{host}", ports


def _parse_port(text: str, port: str) -> int:
    if not PORT.fullmatch(port) or int(port) > 65535:
        raise BadPattern(f"{text!r}: a port is a number from 1 to 65535, or '*' for every port")
    return int(port)


def _parse_path(text: str, path: str) -> tuple[str, bool]:
    """The path without ``**`` at its end, and whether it had that."""
    cut = path.removesuffix("**") if path.endswith("/**") else path
    if "?" in cut or "#" in cut:
        raise BadPattern(f"{text!r}: a pattern ends with the path, what stands behind it is not judged")
    if "*" in cut:
        raise BadPattern(f"{text!r}: a path has no '*' but '/**' at its end, for all below it")
    if not TARGET.fullmatch(cut):
        raise BadPattern(f"{text!r}: a path is ASCII, other characters are written as %XX")
    if is_ambiguous(cut):
        raise BadPattern(f"{text!r}: a path with '//', ';', '.', '..' or an encoded separator in it never matches")
    return cut, cut != path
