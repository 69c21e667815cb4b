"""Low priority of a process that is built ahead: it yields the CPU, and Linux kills it first when memory runs out."""

import os

_OOM_SCORE = "/proc/self/oom_score_adj"
_PARAMETER = os.sched_param(0)


class LowPriority:
    """Applies from its creation to :meth:`end`, which restores what the process had. Neither needs a permission."""

    def __init__(self) -> None:
        self._file = os.open(_OOM_SCORE, os.O_RDWR | os.O_CLOEXEC)
        self._oom_score = os.read(self._file, 16)
        os.pwrite(self._file, b"1000", 0)
        self._is_default = os.sched_getscheduler(0) == os.SCHED_OTHER
        if self._is_default:
            os.sched_setscheduler(0, os.SCHED_BATCH, _PARAMETER)

    def end(self) -> None:
        os.pwrite(self._file, self._oom_score, 0)
        os.close(self._file)
        if self._is_default:
            os.sched_setscheduler(0, os.SCHED_OTHER, _PARAMETER)
