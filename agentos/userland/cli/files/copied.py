"""What ``agentos cp`` has copied so far, and what not."""

from agentos.userland.cli.common import printable

MAX_DEPTH = 200  # directories below the source, each of which is held open
TOO_DEEP = f"it lies more than {MAX_DEPTH} directories deep"


class Copied:
    """What has been copied so far, and what not, with the reason, for people."""

    def __init__(self) -> None:
        self.files = self.bytes = self.entries = 0
        self.skipped: list[str] = []

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{printable(name)}: {why}")
