"""End the process of a script that has run to its end, without finalizing the interpreter.

Finalization frees all modules of the zygote, and so copies nearly all memory that is shared with it: 5 ms of CPU time
for each script. What a script can rely on is done here as the interpreter does it: threads are joined, ``atexit``
functions called, the script's own modules and objects freed, files closed, and the functions of C libraries called.
"""

import _io
import atexit
import ctypes
import gc
import signal
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import Any

_exit = ctypes.PyDLL(None).exit  # of the C library; PyDLL keeps the interpreter's lock, so no other thread runs


def exit_process(status: int, shared: Set[str]) -> None:
    """End the process; ``shared`` are the names of the modules that aren't the script's own.

    Returns if standard output or error can't be flushed: the interpreter's own end reports that.
    """
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    try:
        _flush_streams()
    except (OSError, ValueError):
        return
    for file in _open_files():
        with suppress(Exception):
            file.flush()  # freed in a cycle, a file can lose what it holds
    _free_objects(shared)
    for file in _open_files():  # of objects that are still referenced, for example by a thread
        with suppress(Exception):
            file.close()
    with suppress(OSError, ValueError):
        _flush_streams()  # the end of an object may have printed
    _exit(status)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _free_objects(shared: Set[str]) -> None:
    """Free the script's modules and what only they refer to."""
    atexit._clear()
    for number in range(1, signal.NSIG):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for name in sys.modules.keys() - shared:
        del sys.modules[name]
    gc.collect()


def _open_files() -> Iterator[Any]:
    """Yield the file objects of the script, except the standard streams."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    for found in gc.get_objects():  # none that is frozen: those of the zygote aren't touched
        if _io._IOBase in type(found).__mro__ and not any(found is stream for stream in streams):
            yield found
