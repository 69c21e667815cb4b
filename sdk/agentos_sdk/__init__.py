"""The SDK for programs that talk to an AgentOS kernel: a blocking client, a Trio client, and their errors.

Names are imported on first use, so an agent that needs only the blocking client loads nothing else.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from typing import Any

    from .blocking import AgentOSClient, default_socket
    from .client import Kernel, connect
    from .errors import AgentOSError, CallError, ConnectionFailed
    from .opcodes import SyscallOp

_MODULE_OF = {
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
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        # Not by importlib, whose import takes longer than that of our modules.
        return getattr(__import__(f"{__name__}.{_MODULE_OF[name]}", fromlist=[name]), name)
    except ModuleNotFoundError as error:
        if _MODULE_OF[name] != "client" or error.name is None or error.name.startswith(__name__):
            raise
        text = f"{name} needs {error.name}, which is not installed: pip install './sdk[trio]' in AgentOS's repository"
        raise ModuleNotFoundError(text, name=error.name) from None
