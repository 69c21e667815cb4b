"""Structs that threads decode: msgspec learns them here, where their modules are imported and there is one thread."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentos.private_files import read_file

T = TypeVar("T")


def learn(*kinds: Any) -> None:
    """Have msgspec know these types, and those of their fields; to be called below them, at the top of their module.

    It learns a Struct when it first decodes one or converts to it, and two threads that do so at once end the process
    by SIGSEGV (msgspec 0.22). Types that a decoder at the top of a module has are known.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)


def read_json(path: Path, kind: type[T]) -> T:
    """The record of this type in a private file.

    Raises ``FileNotFoundError`` and other ``OSError``, and ``msgspec.DecodeError`` if it is damaged in any way.
    """
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
