"""Which recordings a kernel has made: their manifests have a mark that the key of its state directory makes."""

# A recording from elsewhere may be unpacked beside them. An agent goes on only from an own one, and only own ones begin
# with snapshots, have messages of the operator, and are removed for ``max_total``. The mark is of the manifest: lines
# that something else has changed since have none.

import hmac
import os
import secrets
from pathlib import Path

from attrs import frozen

from agentos.private_files import append_whole, open_file

from .format import Manifest, encode_line

KEY = "recordings.key"  # in the state directory: what is unpacked in the one of the recordings can't replace it


@frozen
class Marks:
    """Makes and checks marks."""

    _key: bytes

    @classmethod
    def open(cls, directory: Path) -> "Marks":
        """With the key in a state directory, which is made if there is none. Raises ``OSError``. Blocks."""
        fd = open_file(directory / KEY, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            key = os.read(fd, 100)
            if len(key) != 32:  # it was never written whole
                os.ftruncate(fd, 0)
                append_whole(fd, key := secrets.token_bytes(32))
            return cls(key)
        finally:
            os.close(fd)

    def make(self, manifest: Manifest) -> str:
        return hmac.digest(self._key, encode_line([manifest.name, float(manifest.began)]), "sha256").hex()

    def is_own(self, manifest: Manifest) -> bool:
        return hmac.compare_digest(manifest.mark.encode(errors="replace"), self.make(manifest).encode())
