"""Settings of outgoing HTTP, as configured in ``[http]``."""

from collections.abc import Sequence

from attrs import frozen

from .secrets import SecretSettings


@frozen
class HttpSettings:
    """``ca_file``: a PEM file of certificate authorities instead of the host's.

    ``upstream_proxy``: host and port of an HTTP proxy for all connections. ``resolver``: address and port of a DNS
    server that is asked instead of the host's resolver.
    """

    ca_file: str | None = None
    upstream_proxy: tuple[str, int] | None = None
    resolver: tuple[str, int] | None = None
    secrets: Sequence[SecretSettings] = ()
