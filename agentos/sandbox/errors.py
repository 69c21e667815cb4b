"""Errors of sandbox creation, by what the caller can do about them."""

import errno

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
EXHAUSTED = (OSError, RuntimeError)
"""Exceptions for too many open files (EMFILE) and for too many threads (ulimit -u). Polling loops continue on these."""


class SandboxError(Exception):
    """No sandbox was created, and nothing is left of the attempt."""


class StepFailed(SandboxError):
    """A step of the plan failed: its name, the errno (0 if it was no system call), and the text."""

    def __init__(self, step: str, errno: int, text: str) -> None:
        super().__init__(f"{step}: {text}")
        self.step, self.errno, self.text = step, errno, text


class ProcessEnded(SandboxError):
    """The new process was killed before it was the program, as Linux does when memory runs out: a retry may succeed."""


class ZygoteDied(SandboxError):
    """The zygote died during the request. Another one has been started, so a retry may succeed."""
