"""NOOP, HELLO, CANCEL and EXIT: the calls about the connection itself (NOOP and EXIT have no JSON)."""

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from agentos_sdk.opcodes import Op

from .request import Request


@frozen(kw_only=True)
class Welcome:
    """Who the kernel takes this connection for, and what it can do."""

    success: bool = True
    protocol: int
    kernel_version: str
    agent_id: int
    name: str
    features: Mapping[str, bool]


@frozen(kw_only=True)
class Hello(Request[Welcome]):
    """Choose the protocol version; ``as_``, ``level`` and ``permissions`` give rights away for good."""

    op = Op.HELLO
    reply = Welcome
    protocol: Literal[1, 2] = 1
    as_: str | None = None
    level: str | None = None
    permissions: object = None


@frozen(kw_only=True)
class Withdrawn:
    """``cancelled`` is false when the request had been answered already, or never was."""

    success: bool = True
    cancelled: bool


@frozen(kw_only=True)
class Cancel(Request[Withdrawn]):
    """Withdraw the request with that id on the same connection; it is answered ``cancelled``."""

    op = Op.CANCEL
    reply = Withdrawn
    id: int
