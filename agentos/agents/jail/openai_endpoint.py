"""The agent's endpoint, compatible with OpenAI, Anthropic and Gemini: its port, API key and environment variables."""

import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping

from attrs import field, frozen

from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.wire.listener import BACKLOG, ListenError
from agentos.sandbox.steps import SocketAddress

PORT = 80  # in a jail: its programs can't bind ports below 1024, so there is no conflict
ADDRESS: SocketAddress = ("tcp", "127.0.0.1", PORT)
ANY_KEY = "agentos"  # clients must send a key; it isn't checked, since only the jail's own processes reach its port

Serve = Callable[[socket.socket, Caller, str | None], Awaitable[None]]


@frozen
class Endpoint:
    """``listener`` is on the host's network, open to all local processes; ``None``: the jail creates it."""

    port: int
    key: str | None = field(default=None, repr=False)
    listener: socket.socket | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        where = "127.0.0.1" if self.port == 80 else f"127.0.0.1:{self.port}"
        key = self.key or ANY_KEY
        return {
            "OPENAI_BASE_URL": f"http://{where}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": f"http://{where}",  # its clients add /v1
            "ANTHROPIC_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": f"http://{where}",  # its clients add /v1beta or /v1
            "GEMINI_API_KEY": key,
        }


def endpoint(spec: AgentSpec) -> Endpoint:
    """Create the endpoint of one life. Raises :class:`~agentos.kernel.wire.listener.ListenError` if no port is
    available.
    """
    if spec.has_own_network:
        return Endpoint(PORT)
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    except OSError as error:
        raise ListenError(f"no port can be had for it: {error.strerror}") from None
    listener.setblocking(False)
    return Endpoint(listener.getsockname()[1], secrets.token_urlsafe(32), listener)
