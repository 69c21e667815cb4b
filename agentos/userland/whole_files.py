"""Files of the user that are written whole, or stay as they were."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A private file beside ``path``, which takes its place at the block's end; if that fails nothing is left of it.

    An error of it names ``path``: that of a full disk names no file.
    """
    partial = None
    try:
        fd, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(fd, "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException as error:
        if partial is not None:
            with suppress(OSError):
                os.unlink(partial)
        if isinstance(error, OSError) and (error.filename is None or partial in (None, error.filename)):
            error.filename = str(path)
        raise


def write_all(file: RawIOBase, data: bytes) -> None:
    """Write all to a file without a buffer, whose errors come here and not once it is closed. Raises ``OSError``."""
    while data:
        data = data[file.write(data) or 0 :]
