"""Settings of the dashboard in a configuration file: the ``[dashboard]`` table."""

import re
from collections.abc import Sequence

from attrs import frozen

from agentos.config.reader import Reader
from agentos.config.schema import DashboardTable

DEFAULT_PORT = 8000
LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\s]+):(?P<port>[0-9]{1,5})")


@frozen(kw_only=True)
class DashboardSettings:
    """``port`` None: 8000, or the next free one. ``allowed_hosts``: host names without port, of a reverse proxy."""

    host: str = "127.0.0.1"
    port: int | None = None
    allowed_hosts: Sequence[str] = ()


def read_dashboard(reader: Reader, data: object) -> DashboardSettings | None:
    """Read the ``[dashboard]`` table; None if there is none."""
    if data is None:
        return None
    read = reader.read(DashboardTable, data, ("dashboard",))
    allowed = [name.lower() for name in read.table.allowed_hosts or ()]
    for name in allowed:
        if not re.fullmatch(r"[a-z0-9.-]+|\[[0-9a-f:]+\]", name):
            reader.add_mistake(read, f"expected host names without port, got {name!r}", "allowed_hosts")
    try:
        host, port = parse_listen(read.table.listen) if read.table.listen is not None else ("127.0.0.1", None)
    except ValueError as error:
        reader.add_mistake(read, str(error), "listen")
        return None
    return DashboardSettings(host=host, port=port, allowed_hosts=allowed)


def parse_listen(text: str) -> tuple[str, int]:
    """``127.0.0.1:8000`` or ``[::1]:8000``; raises ``ValueError``. Port 0 is any free port."""
    found = LISTEN.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"expected HOST:PORT such as 127.0.0.1:{DEFAULT_PORT}, got {text!r}")
    return found["host"].strip("[]"), int(found["port"])
