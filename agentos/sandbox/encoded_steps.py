"""Steps as bytes: what the zygote gets of a plan, and what the new process gets. Standard library only."""

import marshal
from collections.abc import Sequence

from .steps import KINDS, Clone, Detach, Join, Step

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def encode(steps: Sequence[Step]) -> bytes:
    """Encode the steps as bytes for another process of the same program."""
    # Marshal version 0: later versions intern each name, which touches, and so copies, the reader's table of names.
    return marshal.dumps([(_NUMBERS[type(step)], *step) for step in steps], 0)


def encode_plan(steps: Sequence[Step]) -> tuple[bytes, bytes]:
    """Encode what the zygote does, and what the new process does from its birth on.

    The zygote doesn't get the other steps: they may hold secrets.
    """
    return (
        encode([step for step in steps if isinstance(step, Clone | Join | Detach)]),
        encode([step for step in steps if not isinstance(step, Detach)]),
    )


def decode(data: bytes) -> tuple[Step, ...]:
    """Decode the bytes of :func:`encode`; an exception for anything else."""
    return tuple(tuple.__new__(KINDS[number], fields) for number, *fields in marshal.loads(data))  # noqa: S302
