"""AgentOS: a microkernel for AI agents."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentos_sdk import AgentOSClient, SyscallOp

__version__ = "0.1.0"
__all__ = ["AgentOSClient", "SyscallOp", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("AgentOSClient", "SyscallOp"):
        import agentos_sdk

        return getattr(agentos_sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
