"""The key that seals what MCP clients send back with an answer, kept so that a server started anew understands it."""

import secrets
from contextlib import ExitStack
from pathlib import Path

from agentos.private_files import hold_directory, read_file, replace_file

DIRECTORY, FILE = "mcp", "request-state.key"  # in the kernel's state directory
KEY_BYTES = 32


def load_state_key(state_dir: Path) -> bytes:
    """The key of this kernel's MCP servers, created with the first. Blocks; raises ``OSError`` if it can't be kept.

    Of two servers that both start as the first, each has its own key, and the last one's is kept.
    """
    with ExitStack() as held:
        place = held.enter_context(hold_directory(held.enter_context(hold_directory(state_dir)) / DIRECTORY))
        try:
            return bytes.fromhex(read_file(place / FILE))
        except (FileNotFoundError, ValueError):  # there is none, or it was cut short
            key = secrets.token_bytes(KEY_BYTES)
            replace_file(place / FILE, key.hex())
            return key
