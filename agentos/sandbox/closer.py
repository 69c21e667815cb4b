"""Close descriptors in a thread: the last one of a mount namespace waits for a grace period of RCU, milliseconds."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable

import trio
from attrs import define, field


@define(eq=False)
class Closer:
    """Closes descriptors soon; at most one thread is at it, however many come at once."""

    busy: bool = False  # a thread is closing
    _fds: deque[int] = field(factory=deque)
    _lock: threading.Lock = field(factory=threading.Lock)  # of ``busy``: a thread with nothing left may be about to end

    def close(self, fds: Iterable[int]) -> None:
        """Close these, and return at once."""
        with self._lock:
            self._fds.extend(fds)
            if self.busy:
                return
            self.busy = True
        try:
            trio.lowlevel.start_thread_soon(self._close_all, lambda result: result.unwrap())
        except RuntimeError:  # no thread can be started
            self._close_all()

    def _close_all(self) -> None:
        while True:
            with self._lock:
                if not self._fds:
                    self.busy = False
                    return
                fd = self._fds.popleft()
            with contextlib.suppress(OSError):  # it is closed all the same; the next ones must be closed, too
                os.close(fd)
