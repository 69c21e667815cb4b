"""Settings of outgoing HTTP, as configured in ``[http]``."""

import ssl
from collections.abc import Sequence

from attrs import frozen

from agentos.services.files.foreign_files import read_regular

from .secrets import SecretSettings

MAX_AUTHORITIES = 16 << 20  # bytes of a file of certificates


@frozen
class HttpSettings:
    """``ca_file``: a PEM file of certificate authorities instead of the host's.

    ``upstream_proxy``: host and port of an HTTP proxy for all connections. ``resolver``: address and port of a DNS
    server that is asked instead of the host's resolver. ``cassette``: the absolute path of a HAR file whose
    responses are given instead of any connection; see :mod:`.cassette`.
    """

    ca_file: str | None = None
    upstream_proxy: tuple[str, int] | None = None
    resolver: tuple[str, int] | None = None
    secrets: Sequence[SecretSettings] = ()
    cassette: str | None = None


def trust(file: str) -> ssl.SSLContext:
    """A context with the authorities of a PEM file. Blocks. Raises ``OSError``, also if the file has none."""
    text = read_regular(file, MAX_AUTHORITIES).decode("ascii", "ignore")  # of comments
    return ssl.create_default_context(cadata=text or "none")
