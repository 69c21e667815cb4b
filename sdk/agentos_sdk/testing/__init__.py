"""Tests of agents: a fake kernel with programmed replies, a real kernel in a process of its own, a pytest plugin.

Names are imported on first use. :class:`FakeKernel` needs the extra ``trio`` of ``agentos-kernel-sdk``, which checks
requests and replies; :class:`RunningKernel` needs ``agentos-kernel``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .fake_kernel import Call, FakeKernel
    from .replays import assert_replays
    from .running_kernel import KernelFailed, RunningKernel

_MODULE_OF = {
    "Call": "fake_kernel",
    "FakeKernel": "fake_kernel",
    "KernelFailed": "running_kernel",
    "RunningKernel": "running_kernel",
    "assert_replays": "replays",
}

__all__ = ["Call", "FakeKernel", "KernelFailed", "RunningKernel", "assert_replays"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(__import__(f"{__name__}.{_MODULE_OF[name]}", fromlist=[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("agentos"):
            raise
        text = (
            f"{name} needs {error.name}, which is not installed: pip install './sdk[testing]' in AgentOS's repository"
        )
        raise ModuleNotFoundError(text, name=error.name) from None
