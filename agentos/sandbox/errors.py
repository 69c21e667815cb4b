"""Why no sandbox came of a request, by what the caller can do about it."""

import errno

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
EXHAUSTED = (OSError, RuntimeError)
"""What no descriptor (EMFILE) and no thread (ulimit -u) look like in Python: who looks again and again goes on."""


class SandboxError(Exception):
    """No sandbox came of it, and nothing is left of the attempt."""


class StepFailed(SandboxError):
    """A step could not be done: which, the errno (0 where it was no system call), and the text."""

    def __init__(self, step: str, errno: int, text: str) -> None:
        super().__init__(f"{step}: {text}")
        self.step, self.errno, self.text = step, errno, text


class ZygoteDied(SandboxError):
    """The process that clones was lost with the request; there's another one by now. Worth another try."""
