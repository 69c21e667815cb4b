"""Settings of export to monitoring programs in a configuration file: the tables ``[metrics]`` and ``[otel]``."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from attrs import frozen

from agentos.config.reader import Reader
from agentos.services.http.destination import is_address
from agentos.telemetry.settings import MetricsSettings, OtelSettings

from .http import split_host_port
from .secrets import read_source


@frozen(kw_only=True)
class MetricsTable:
    """``[metrics]``: see ``agentos.telemetry.settings.MetricsSettings``."""

    listen: str | None = None
    token_from: str | None = None


def read_metrics(reader: Reader, data: object) -> MetricsSettings:
    """Read the ``[metrics]`` table."""
    read = reader.read(MetricsTable, data, ("metrics",))
    table: MetricsTable = read.table
    token_from = read_source(reader, read, "token_from") or None
    if table.listen is None:
        if table.token_from is not None and "listen" not in read.invalid:
            reader.add_mistake(read, "it is for requests to listen: set that too, or leave this out", "token_from")
        return MetricsSettings()
    try:
        listen = read_address(table.listen)
    except ValueError as error:
        reader.add_mistake(read, str(error), "listen")
        return MetricsSettings()
    if not ip_address(listen[0]).is_loopback and table.token_from is None and "token_from" not in read.invalid:
        reader.add_mistake(
            read,
            f"other hosts reach {listen[0]}: set token_from = 'file:PATH' or 'env:NAME', or listen on 127.0.0.1",
            "listen",
        )
    return MetricsSettings(listen, token_from)


def read_otel(reader: Reader, data: object) -> OtelSettings:
    """Read the ``[otel]`` table."""
    read = reader.read(OtelSettings, data, ("otel",))
    table: OtelSettings = read.table
    if table.endpoint is None:
        return OtelSettings()
    try:
        url = urlsplit(table.endpoint)
        split_host_port(url.netloc)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or url.path not in ("", "/") or url.query or url.fragment:
        reader.add_mistake(
            read, "expected http://HOST:PORT or https://HOST:PORT of a collector, without a path", "endpoint"
        )
    return OtelSettings(table.endpoint.rstrip("/"), table.contents)


def read_address(text: str) -> tuple[str, int]:
    """Address and port of ``ADDRESS:PORT``; raises ``ValueError``."""
    try:
        host, port = split_host_port(text)
    except ValueError:
        host, port = "", None
    if port is None or not is_address(host):
        raise ValueError("expected the address and port to listen on, as in 127.0.0.1:9464 or [::1]:9464")
    return host, port
