"""A command of ``agentos`` in a terminal of its own, as a person sees it."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import threading

from tests.support import fork_server
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import PATIENCE

STYLE = re.compile(r"\x1b\[[0-9;]*[mK]")


class Terminal:
    """``agentos`` with these arguments in a terminal; ``data`` is all that was written to it."""

    def __init__(self, kernel: Kernel, *arguments: str, lines: int = 24, columns: int = 80, **env: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self.slave)
        self.data = b""
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, "TERM": "xterm-256color", **env}
        assert fork_server.can_fork(given)
        self.process = fork_server.shared().fork(arguments, str(kernel.place), given, [self.slave] * 3)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.data += data

    @property
    def shown(self) -> str:
        """The data as text, without colours."""
        return STYLE.sub("", self.data.decode(errors="replace"))

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str, since: int = 0) -> int:
        """Until it is shown behind ``since``; how much is shown then."""
        until(lambda: text in self.shown[since:], f"{text!r} is shown")
        return len(self.shown)

    def end(self) -> int:
        """Wait for its end, and until all that it wrote is in ``data``; the terminal must be as before."""
        status = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.slave)  # nothing else has it open: the reader comes to the end
        self.slave = -1
        self.reader.join(PATIENCE)
        assert not self.reader.is_alive(), "something still has the terminal open"
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.slave != -1:  # it wasn't waited for
            os.close(self.slave)
        os.close(self.master)
