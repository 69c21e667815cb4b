"""How a page's connection begins: the kernel proves itself, then the page does. Only then is anything sent.

1. The page names a key, and sends a random number: :class:`Opening`.
2. The kernel answers ``{"nonce": …, "proof": …}``: a random number, and the signature of both by that key.
3. The page checks it, and signs both in its turn: :class:`Proof`.
4. The kernel sends ``{"keys": [KEY, …]}``, which the page may use from now on, then the feed.

No key is sent but in the last step, to a page that has proven itself, and a proof is good for one connection. So a
program that gets at the port while the kernel is down learns nothing by which it could act, and no page believes it.

=====  =========================  =====================================================
use    where the page has it      good for
=====  =========================  =====================================================
link   behind ``#`` of a link     one session, within 10 minutes
run    in the origin's IndexedDB  all pages of the origin, until this run of the kernel ends
tab    in the page's memory       this page, also after the kernel was started anew
=====  =========================  =====================================================

What a browser keeps for an origin is good for one run only: while the kernel is down, another program can have the port
and with a page of its own all that is kept there. docs/decisions/0090.
"""

import hashlib
import hmac
from typing import Annotated, Literal

import msgspec

# Without a line break, as the parts of what is signed stand in lines.
Word = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]


class Opening(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page's first message. ``id`` is the link's number or the session's id; ``salt`` came with the key."""

    use: Literal["link", "run", "tab"]
    id: Word
    salt: Word
    nonce: Word

    def sign(self, key: str, signer: Literal["kernel", "page"], nonce: str) -> str:
        """HMAC-SHA-256, in hex; ``nonce`` is the kernel's."""
        lines = "\n".join(("agentos dashboard", signer, self.use, self.id, self.salt, self.nonce, nonce))
        return hmac.digest(key.encode(), lines.encode(), hashlib.sha256).hex()


class Proof(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page's second message, in hex."""

    proof: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Key(msgspec.Struct, frozen=True):
    """A key of a session, with what a page names it by."""

    use: Literal["run", "tab"]
    id: str
    salt: str
    key: str


decode_opening = msgspec.json.Decoder(Opening).decode
decode_proof = msgspec.json.Decoder(Proof).decode
