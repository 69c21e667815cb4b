"""NOOP, HELLO, CANCEL and EXIT: the calls about the connection itself (NOOP and EXIT carry no JSON)."""

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from agentos_sdk.opcodes import Op

from .request import Request


@frozen(kw_only=True)
class Welcome:
    """The identity that the kernel assigned to this connection, and the kernel's features."""

    success: bool = True
    protocol: int
    kernel_version: str
    agent_id: int
    name: str
    features: Mapping[str, bool]


@frozen(kw_only=True)
class Hello(Request[Welcome]):
    """Choose the protocol version; ``as_``, ``level`` and ``permissions`` reduce the connection's rights for good."""

    op = Op.HELLO
    reply = Welcome
    protocol: Literal[1, 2] = 1
    as_: str | None = None
    level: str | None = None
    permissions: object = None


@frozen(kw_only=True)
class Withdrawn:
    """``cancelled`` is false if the request was already answered or never existed."""

    success: bool = True
    cancelled: bool


@frozen(kw_only=True)
class Cancel(Request[Withdrawn]):
    """Cancel the request with that id on the same connection; its reply is the error ``cancelled``."""

    op = Op.CANCEL
    reply = Withdrawn
    id: int
