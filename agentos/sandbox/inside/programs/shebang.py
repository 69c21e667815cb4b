"""Why a file that exists can't be executed: its interpreter isn't there, or it names none. Standard library only."""

import errno
import os
import re
import stat
from typing import NamedTuple

READ_BYTES = 4096
LOADER = re.compile(rb"(/[\w./+-]*\bld[\w.+-]*\.so[\w.+-]*)\0")  # the path of a dynamic loader in an ELF file
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CannotExecute(FileNotFoundError):
    """As ``FileNotFoundError``, with a text of its own: ``strerror`` says what of the file is missing."""


class FirstLine(NamedTuple):
    """What executes a file: the interpreter of its first line or its loader, and the first argument; "" if none."""

    interpreter: str
    argument: str
    fault: str  # of the line itself; "" if it has none


def read_first_line(path: str) -> FirstLine | None:
    """What the file's beginning names; None for a file that can't be read, or that needs none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait
    except (OSError, ValueError):
        return None
    try:
        data = os.read(fd, READ_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    if data.startswith(b"\x7fELF"):
        found = LOADER.search(data)
        return FirstLine(os.fsdecode(found[1]), "", "") if found else None
    if data.startswith(BYTE_ORDER_MARK + b"#!"):
        return FirstLine("", "", "it begins with a byte order mark, so its first line names no interpreter")
    if not data.startswith(b"#!"):
        return None
    line = data[2:].partition(b"\n")[0]
    fault = "its first line ends with CRLF, which belongs to the name; save it with LF" if line.endswith(b"\r") else ""
    words = os.fsdecode(line).strip(" \t").split(maxsplit=1)
    return FirstLine(words[0] if words else "", words[1].strip() if len(words) > 1 else "", fault)


def explain(error: OSError, path: str) -> OSError:
    """The error of an exec of ``path``, with what of the file is missing, if that is known."""
    first = read_first_line(path) if error.errno in (errno.ENOENT, errno.ENOEXEC) else None
    if first is None:
        return error
    if not first.interpreter:
        return CannotExecute(error.errno, first.fault, path) if first.fault else error
    text = f"its interpreter {first.interpreter} isn't there"
    return CannotExecute(error.errno, f"{text} ({first.fault})" if first.fault else text, path)
