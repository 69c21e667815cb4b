"""What ``agentos cp`` has copied so far, and what not."""

from agentos.userland.cli.common import printable


class Copied:
    """What has been copied so far, and what not, with the reason, for people."""

    def __init__(self) -> None:
        self.files = self.bytes = self.entries = 0
        self.skipped: list[str] = []

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{printable(name)}: {why}")
