"""Replays in tests: a recorded life that changed code has to live again in the same way."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from agentos_sdk import AgentOSClient, AgentOSError

POLL_SECONDS = 0.05


class HasClient(Protocol):
    """A kernel to which an operator can connect, such as a ``RunningKernel``."""

    @property
    def client(self) -> Callable[[], AbstractContextManager[AgentOSClient]]: ...


def run_replay(
    client: AgentOSClient, path: str, *, agent: str | None = None, code: str | None = None, **fork: Any
) -> Mapping[str, Any]:
    """Replay a recorded life to its end; returns the reply of REPLAY_STATUS. ``fork``: until, then and edits.

    If there is no replay, ``verdict`` is ``can't``, and ``error`` says why. What interrupts it ends the replay.
    """
    begun = client.replay_start(path=path, agent=agent, code=code, **fork)
    if not begun["success"]:
        return {
            "verdict": "can't",
            "error": begun["error"],
            "divergence": None,
            "drift": [],
            "masks": {},
            "sealed": 0,
            "notes": [],
            "lives": [],
        }
    return wait_replay(client, begun["name"])


def wait_replay(client: AgentOSClient, name: str) -> Mapping[str, Any]:
    """Wait for the end of the replay with its agent's name; returns the reply of REPLAY_STATUS."""
    try:
        while (now := client.replay_status(name)).get("state") == "RUNNING":
            time.sleep(POLL_SECONDS)
    except BaseException:
        client.replay_stop(name)
        raise
    if not now["success"] or now["verdict"] is None:
        raise AgentOSError(f"the replay {name} was ended by REPLAY_STOP")
    return now


def assert_replays(
    kernel: HasClient,
    path: str | os.PathLike[str],
    *,
    agent: str | None = None,
    code: str | os.PathLike[str] | None = None,
    strict: bool = False,
) -> Mapping[str, Any]:
    """Raise ``AssertionError`` unless the recorded life is lived again in the same way; returns what was found.

    ``path`` is a recording's directory. The kernel's configuration declares the agent; ``code`` is another directory
    with its program. With ``strict`` no words may differ, not even where an answer was found.
    """
    with kernel.client() as client:
        found = run_replay(
            client,
            os.path.abspath(path),
            agent=agent,
            code=None if code is None else os.path.abspath(code),
        )
    allowed = ("identical",) if strict else ("identical", "drifted")
    if found["verdict"] not in allowed:
        drift = [f"{one['kind']}: {one['where']}: {one['recorded']!r}, now {one['now']!r}" for one in found["drift"]]
        said = [found["verdict"], found["divergence"] or found["error"] or "", *drift]
        raise AssertionError("\n".join(line for line in said if line))
    return found
