"""Where a program that speaks OpenAI's protocol finds the model: a port of its own, and the key that goes with it."""

import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping

from attrs import field, frozen

from agentos.kernel.caller import Caller
from agentos.kernel.door import BACKLOG, DoorError

from .spec import AgentSpec

PORT = 80  # in a jail: none of its programs may take a port below 1024, so that none is in the way of theirs
ANY_KEY = "agentos"  # a client has to send one; nobody looks at it, since who reaches a jail's own port is in that jail

Serve = Callable[[socket.socket, Caller, str | None], Awaitable[None]]


@frozen
class Endpoint:
    """``listener``: on the host's network, where everybody can knock; ``None``: the jail has it, made as it is."""

    port: int
    key: str | None = field(default=None, repr=False)
    listener: socket.socket | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        where = "127.0.0.1" if self.port == 80 else f"127.0.0.1:{self.port}"
        return {"OPENAI_BASE_URL": f"http://{where}/v1", "OPENAI_API_KEY": self.key or ANY_KEY}

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()


def endpoint(spec: AgentSpec) -> Endpoint:
    """One life's; :class:`~agentos.kernel.door.DoorError` where no port can be had."""
    if spec.jailed and not spec.network:
        return Endpoint(PORT)
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    except OSError as error:
        raise DoorError(f"no port can be had for it: {error.strerror}") from None
    listener.setblocking(False)
    return Endpoint(listener.getsockname()[1], secrets.token_urlsafe(32), listener)
