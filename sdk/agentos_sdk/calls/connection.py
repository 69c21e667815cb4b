"""NOOP, HELLO, CANCEL and EXIT: the calls about the connection itself (NOOP and EXIT carry no JSON)."""

from collections.abc import Mapping
from typing import Literal

from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Request, SuccessfulReply


@record
class Welcome(SuccessfulReply):
    """The identity that the kernel assigned to this connection, and the kernel's features."""

    protocol: int
    kernel_version: str
    agent_id: int
    name: str
    features: Mapping[str, bool]


@record
class Hello(Request[Welcome]):
    """Choose the protocol version; ``as_``, ``level`` and ``permissions`` reduce the connection's rights for good.

    ``approval_timeout`` is how many seconds this connection's calls wait for a person where one must approve; 0: not at
    all. ``None``: as the kernel is configured. A ``kept`` mailbox outlives connection and kernel, for the next guest of
    that name.
    """

    op = Op.HELLO
    protocol: Literal[1, 2] = 1
    as_: str | None = None
    level: str | None = None
    permissions: object = None
    approval_timeout: Seconds | None = None
    mailbox: Literal["kept", "memory"] = "memory"

    @property
    def of_guest(self) -> bool:
        """Whether it makes its caller a guest."""
        given = self.as_, self.level, self.permissions
        return self.mailbox == "kept" or any(field is not None for field in given)


@record
class Withdrawn(SuccessfulReply):
    """``cancelled`` is false if the request was already answered or never existed."""

    cancelled: bool


@record
class Cancel(Request[Withdrawn]):
    """Cancel the request with that id on the same connection; its reply is the error ``cancelled``."""

    op = Op.CANCEL
    id: int
