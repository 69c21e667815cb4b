"""Copy memory that is shared with the zygote before a process writes to it.

Each first write to a page has Linux copy it, one at a time. A process that waits has the time to do that.
"""

import struct
from collections.abc import Iterable

from . import libc

_ranges = bytearray()  # packed: each process that reads a list also writes to it


def set_ranges(ranges: Iterable[tuple[int, int]]) -> None:
    """Set what :func:`copy_ranges` copies, as addresses and sizes in bytes. Called in the zygote, for its children."""
    _ranges[:] = b"".join([struct.pack("=2Q", *one) for one in ranges])


def copy_ranges() -> None:
    """Copy what a program writes to, as far as this process has it."""
    for address, size in struct.iter_unpack("=2Q", _ranges):
        libc.populate(address, size)
