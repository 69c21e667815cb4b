"""Secrets that the kernel adds to HTTP requests, and their removal from what comes back.

A value is read by the kernel alone. It is sent in a header, to the places that the secret is for, and nothing that a
caller or a log gets has it: a :class:`Redactor` replaces it by :data:`MARK`.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Protocol

from attrs import define, field, frozen

from .destination import Destination, is_address

MARK = "•••"  # not ASCII: no value has any byte of it, so no value is made anew where it is put
MIN_LENGTH, MAX_LENGTH = 8, 4096  # characters of a value: a shorter one would be redacted in any text
FORMER_VALUES = 4  # of each secret, which are still redacted after it was changed

PRINTABLE = bytes(range(0x20, 0x7F))

_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


class Place(Protocol):
    """Where a secret is sent to; a domain pattern is one."""

    def matches(self, what: Destination, *, deny: bool) -> bool: ...

    def overlaps(self, other: Any) -> bool: ...


@frozen
class SecretSettings:
    """A secret as configured: its value is in ``source``, ``env:NAME`` or ``file:PATH`` with an absolute path.

    ``prefix`` comes before the value in the header.
    """

    name: str
    places: Sequence[Place]
    header: str
    prefix: str
    source: str

    def applies_to(self, destination: Destination, proxied: bool) -> bool:
        """Whether a request there carries it: only over TLS, or to a loopback address of this host."""
        if destination.scheme != "https":
            host = destination.host
            if proxied or not is_address(host) or not ip_address(host).is_loopback:
                return False
        return any(place.matches(destination, deny=False) for place in self.places)

    def conflicts_with(self, other: "SecretSettings") -> bool:
        """Whether both would set the same header of some request."""
        if self.header.lower() != other.header.lower():
            return False
        return any(one.overlaps(another) for one in self.places for another in other.places)


class UnreadableSecret(Exception):
    """``name`` is that of the secret; the text says why its value can't be read, without any of it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"[[http.secrets]] {name}: value_from: {message}")
        self.name = name


def read_value(secret: SecretSettings, environment: Mapping[str, str]) -> str:
    """The value of a secret, without white space around it; raises :class:`UnreadableSecret`. Blocks."""
    try:
        return read_source(secret.source, environment)
    except ValueError as error:
        raise UnreadableSecret(secret.name, str(error)) from None


def read_source(source: str, environment: Mapping[str, str]) -> str:
    """The value in ``env:NAME`` or ``file:PATH``, without white space around it. Blocks.

    Raises ``ValueError`` with the reason, without any of the value.
    """
    kind, _, where = source.partition(":")
    try:
        text = environment.get(where) if kind == "env" else _read_file(where)
    except OSError as error:
        raise ValueError(f"{where} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if text is None:
        raise ValueError(f"the kernel's environment has no variable {where}")
    text = text.strip()
    if not MIN_LENGTH <= len(text) <= MAX_LENGTH or not _VALUE.fullmatch(text):
        raise ValueError(f"expected {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters in one line in {where}")
    return text


def _read_file(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # opening a FIFO would block
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a file")
        if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ValueError("other users may read or write it: chmod o= for a file with a secret")
        return file.read(2 * MAX_LENGTH).decode(errors="replace")


@frozen
class _Held:
    """A secret with its values: the present one, then former ones."""

    settings: SecretSettings
    values: Sequence[str] = field(repr=False)

    def __repr__(self) -> str:
        return f"secret {self.settings.name}"


@define(eq=False)
class Secrets:
    """All secrets of one kernel, in the order of the file. ``proxied``: requests go through an upstream proxy."""

    proxied: bool = False
    _held: Mapping[str, _Held] = field(factory=dict, repr=False)

    @property
    def settings(self) -> Mapping[str, SecretSettings]:
        """By name."""
        return {name: held.settings for name, held in self._held.items()}

    def read(self, settings: Iterable[SecretSettings], environment: Mapping[str, str]) -> Mapping[str, str]:
        """The values of these secrets by name; changes nothing. Raises :class:`UnreadableSecret`. Blocks."""
        return {each.name: read_value(each, environment) for each in settings}

    def find_changed(self, settings: Iterable[SecretSettings], values: Mapping[str, str]) -> Sequence[str]:
        """The names of secrets that :meth:`replace` would add, change or remove."""
        new = {each.name: each for each in settings}
        return [
            name
            for name in {**self._held, **new}
            if name not in new
            or name not in self._held
            or self._held[name].settings != new[name]
            or self._held[name].values[0] != values[name]
        ]

    def replace(self, settings: Iterable[SecretSettings], values: Mapping[str, str]) -> None:
        """Use these secrets from the next request on."""
        held = {}
        for each in settings:
            former = self._held[each.name].values if each.name in self._held else ()
            held[each.name] = _Held(each, tuple(dict.fromkeys((values[each.name], *former)))[: FORMER_VALUES + 1])
        self._held = held

    def headers_for(self, names: Collection[str], destination: Destination) -> Sequence[tuple[str, str]]:
        """The headers that a request gets for the secrets ``names``; of several with one header, the file's first."""
        used = self._used(names, destination)
        return [(one.settings.header, one.settings.prefix + one.values[0]) for one in used]

    def names_for(self, names: Collection[str], destination: Destination) -> Sequence[tuple[str, str]]:
        """Those of the secrets ``names`` that a request gets there, each with its header."""
        return [(one.settings.name, one.settings.header) for one in self._used(names, destination)]

    def find_setter(self, names: Collection[str], destination: Destination, header: str) -> str | None:
        """The name of the secret that sets this header there, if any."""
        applying = self._applying(names, destination)
        return next((each.settings.name for each in applying if each.settings.header.lower() == header.lower()), None)

    def _used(self, names: Collection[str], destination: Destination) -> Sequence[_Held]:
        found: dict[str, _Held] = {}
        for secret in self._applying(names, destination):
            found.setdefault(secret.settings.header.lower(), secret)
        return list(found.values())

    def _applying(self, names: Collection[str], destination: Destination) -> Sequence[_Held]:
        return [
            each
            for name, each in self._held.items()
            if name in names and each.settings.applies_to(destination, self.proxied)
        ]

    def list_values(self) -> Sequence[str]:
        """The values of all secrets, also former ones."""
        return [value for _, value in self.list_named()]

    def list_named(self) -> Sequence[tuple[str, str]]:
        """The same, each with the name of its secret."""
        return [(name, value) for name, held in self._held.items() for value in held.values]

    def redactor(self) -> "Redactor":
        """What removes the values of all secrets from one response.

        For every caller: a server may repeat a value to another caller than the one for which it was sent.
        """
        return Redactor(self.list_values())


def _longest_first(values: Iterable[str]) -> Sequence[bytes]:
    return sorted((value.encode() for value in values), key=len, reverse=True)


@define(eq=False, repr=False)
class Redactor:
    """Replaces ``values`` by :data:`MARK` in one body, which comes in pieces, and in texts.

    The end of a piece is held back until the next one shows whether a value began there: all printable characters of
    the longest value's length, whatever they are. So the pieces don't show which text begins a value.
    """

    _values: Sequence[bytes] = field(converter=_longest_first)
    _held: bytes = b""
    _kept: int = field(init=False)  # bytes that are held back at most
    _characters: bytes = field(init=False)  # that are held back: what else is in no value

    def __attrs_post_init__(self) -> None:
        self._kept = max(map(len, self._values), default=1) - 1
        plain = not any(value.translate(None, PRINTABLE) for value in self._values)
        self._characters = PRINTABLE if plain else bytes(range(256))

    @property
    def values(self) -> Sequence[bytes]:
        return self._values

    def feed(self, part: bytes) -> bytes:
        """What may be passed on of all that came up to now."""
        if not self._values:
            return part
        data, done, out = self._held + part, 0, bytearray()
        held = self._find_end(data, 0)
        if any(value in data for value in self._values):
            pattern = self._pattern
            # A match that begins before ``held`` is the whole one: no longer value can begin there.
            while (found := pattern.search(data, done)) is not None and found.start() < held:
                out += data[done : found.start()] + MARK.encode()
                done = found.end()
                if done > held:
                    held = self._find_end(data, done)
        out += data[done:held]
        self._held = data[held:]
        return bytes(out)

    def end(self) -> bytes:
        """What was held back, once there is no more."""
        rest, self._held = self._held, b""
        return self._pattern.sub(MARK.encode(), rest) if rest else rest

    def redact_cut(self, text: str, most: int) -> str:
        """The first ``most`` characters of a whole text, without a value that the cut divides.

        The beginning of a value alone is kept: an agent that chooses the text could find a value by single characters.
        """
        data = text[: most + self._kept].encode(errors="surrogatepass")
        end = len(text[:most].encode(errors="surrogatepass"))
        if self._values:
            divided = (found.start() for found in self._pattern.finditer(data) if found.start() < end < found.end())
            kept = self._pattern.sub(MARK.encode(), data[: next(divided, end)])
        else:
            kept = data[:end]
        return kept.decode(errors="surrogatepass")

    def redact(self, text: str) -> str:
        """A whole text without the values."""
        for value in self._values:
            text = text.replace(value.decode(), MARK)
        return text

    @property
    def _pattern(self) -> "re.Pattern[bytes]":
        return re.compile(b"|".join(map(re.escape, self._values)))  # the longest first; the module keeps it compiled

    def _find_end(self, data: bytes, start: int) -> int:
        """Where the part of ``data`` from ``start`` on begins that is held back."""
        tail = data[max(start, len(data) - self._kept) :] if self._kept else b""
        return len(data) - len(tail) + len(tail.rstrip(self._characters))
