"""Settings of outgoing HTTP in a configuration file: the ``[http]`` table."""

import re
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from attrs import frozen

from agentos.config.reader import Reader
from agentos.services.http.destination import is_address, parse_host
from agentos.services.http.har import read_har
from agentos.services.http.settings import HttpSettings, trust

from .secrets import read_secrets

HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[1-9][0-9]{0,4}))?")


@frozen(kw_only=True)
class HttpTable:
    """``[http]``: see ``agentos.services.http.settings.HttpSettings``; ``ca_file`` and ``cassette`` are paths.

    The tables of secrets are read one by one.
    """

    ca_file: str | None = None
    upstream_proxy: str | None = None
    resolver: str | None = None
    cassette: str | None = None
    secrets: Sequence[object] = ()


def read_http(reader: Reader, data: object) -> HttpSettings:
    """Read the ``[http]`` table."""
    read = reader.read(HttpTable, data, ("http",))
    made: dict[str, Any] = {}
    readers: dict[str, Callable[[str], object]] = {
        "ca_file": lambda path: check_file(reader, path, read_ca_file),
        "upstream_proxy": read_proxy,
        "resolver": read_resolver,
        "cassette": lambda path: check_file(reader, path, lambda file: read_har(Path(file))),
    }
    for name, text in read.present_fields("secrets").items():
        try:
            made[name] = readers[name](text)
        except ValueError as error:
            reader.add_mistake(read, str(error), name)
    return HttpSettings(**made, secrets=read_secrets(reader, read.table.secrets))


def check_file(reader: Reader, path: str, check: Callable[[str], object]) -> str:
    """The absolute path of a file, which is checked unless it is settled; raises ``ValueError``. Blocks."""
    file = str(reader.resolve_path(path))
    if file not in reader.settled:
        check(file)
    return file


def read_ca_file(file: str) -> None:
    """Check that the file has certificates; raises ``ValueError``. Blocks."""
    try:
        found = trust(file).get_ca_certs()
    except ssl.SSLError:
        found = []
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    if not found:
        raise ValueError(f"{file} has no certificate of an authority in PEM format")


def read_proxy(text: str) -> tuple[str, int]:
    """Host and port of ``http://HOST:PORT``; raises ``ValueError``."""
    try:
        host, port = split_host_port(text.removeprefix("http://").removesuffix("/"))
    except ValueError:
        port = None
    if not text.startswith("http://") or port is None:
        raise ValueError("expected http://HOST:PORT, without a user and a password")
    return host, port


def read_resolver(text: str) -> tuple[str, int]:
    """Address and port of ``ADDRESS`` or ``ADDRESS:PORT``; raises ``ValueError``."""
    try:
        host, port = split_host_port(f"[{ip_address(text)}]" if text.count(":") > 1 and "[" not in text else text)
    except ValueError:
        host, port = "", None
    if not is_address(host):
        raise ValueError("expected the address of a DNS server, as in 192.0.2.53 or 192.0.2.53:5353")
    return host, port or 53


def split_host_port(text: str) -> tuple[str, int | None]:
    """Host and port of ``HOST[:PORT]``; raises ``ValueError``."""
    parts = HOST_PORT.fullmatch(text)
    if parts is None or int(parts["port"] or 0) > 65535:
        raise ValueError
    return parse_host(parts["host"]), int(parts["port"]) if parts["port"] else None
