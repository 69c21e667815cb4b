"""State of the former layout, with one state directory for all projects: it is reported, neither used nor moved."""

import contextlib
import os
import shlex
from pathlib import Path

from agentos_sdk.project import is_lock_held

NAMES = (
    *("lock", "run.json", "last-run.json", "agentos.db", "agentos.db-wal", "agentos.db-shm"),
    *("audit", "logs", "events", "workspaces", "layers", "snapshots", "images", "recordings"),
    *("outer-ids.json", "stubs.json"),
)


def describe_former_state(state_dir: Path) -> str | None:
    """The message about state beside this state directory that is no project's: how to move it here. None without it.

    ``state_dir`` exists. Such state was left by a kernel whose state directory was the parent.
    """
    parent = state_dir.parent
    names = [name for name in NAMES if os.path.lexists(parent / name)]
    if not {"lock", "agentos.db"} <= set(names) or _is_in_use(parent / "lock"):
        return None
    own, unused = shlex.quote(state_dir.name), shlex.quote(f"{state_dir.name}.unused")
    return (
        f"{parent} holds state of an earlier kernel ({', '.join(names)}), which is no project's and isn't used: "
        f"if it is this project's, stop this kernel and run: cd {shlex.quote(str(parent))} && mv {own} {unused} "
        f"&& mkdir -m 700 {own} && mv {' '.join(names)} {own}"
    )


def _is_in_use(lock: Path) -> bool:
    """Whether a kernel runs with this state directory, as with ``--state-dir``."""
    with contextlib.suppress(OSError):
        return is_lock_held(str(lock))
    return False
