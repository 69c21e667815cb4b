"""What a program needs to talk to its kernel: a blocking client, a Trio client, and the errors of both.

Names are loaded when they are first used, so that an agent that needs the blocking client pays for nothing else.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which nobody needs at run time
if TYPE_CHECKING:
    from typing import Any

    from .blocking import AgentOSClient, default_socket
    from .client import Kernel, connect
    from .errors import AgentOSError, CallError, ConnectionFailed
    from .opcodes import SyscallOp

_HOME = {
    "AgentOSClient": "blocking",
    "default_socket": "blocking",
    "Kernel": "client",
    "connect": "client",
    "AgentOSError": "errors",
    "CallError": "errors",
    "ConnectionFailed": "errors",
    "SyscallOp": "opcodes",
}

__all__ = [
    "AgentOSClient",
    "AgentOSError",
    "CallError",
    "ConnectionFailed",
    "Kernel",
    "SyscallOp",
    "connect",
    "default_socket",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
