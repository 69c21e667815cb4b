"""Structs that threads decode: msgspec learns them here, where their modules are imported and there is one thread."""

from typing import Any

import msgspec


def learn(*kinds: Any) -> None:
    """Have msgspec know these types, and those of their fields; to be called below them, at the top of their module.

    It learns a Struct when it first decodes one or converts to it, and two threads that do so at once end the process
    by SIGSEGV (msgspec 0.22). Types that a decoder at the top of a module has are known.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)
