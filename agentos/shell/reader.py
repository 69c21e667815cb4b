"""Reads a text for ``bash --noprofile --norc -p -c --``, or the words of a command that no shell reads.

The subset: simple commands of literal words, joined by ``&&``, ``||``, ``;``, ``|`` and newlines, redirected to literal
names, with here-documents whose delimiter is quoted. ``$NAME``, a glob and a leading ``~`` make an argument one that is
not known. Everything else makes the text opaque; no text raises.
"""

import logging
import shlex
from collections.abc import Sequence

from .frames import MAX_NESTING, MAX_PIECES, Found
from .reading import Command, Commands, Opaque, Reading, Word
from .scanner import Scanner

log = logging.getLogger(__name__)

MAX_LENGTH = 64 << 10  # bytes, of a text and of all texts nested in it
FAILED = "a text that can't be read because of an error in the reader"
TOO_LONG = f"a text of more than {MAX_LENGTH} bytes or {MAX_PIECES} words, or nested more than {MAX_NESTING} times"


def read(text: str) -> Reading:
    """What bash runs for ``text``."""
    found = Found()
    found.texts.append((text, 0))
    return _reading(text, found)


def read_words(words: Sequence[str]) -> Reading:
    """What starting a program with these arguments runs: themselves, and what the program is known to run."""
    found = Found()
    text = shlex.join(words)
    if words and words[0]:
        found.command(Command(tuple(Word(word, shlex.quote(word)) for word in words)), 0)
    else:
        found.note("an empty command")
    return _reading(text, found)


def _reading(text: str, found: Found) -> Reading:
    left = 2 * MAX_LENGTH
    while found.texts and found.whole:
        inner, depth = found.texts.pop()
        length = len(inner.encode(errors="replace"))
        left -= length
        found.whole = length <= MAX_LENGTH and left >= 0 and depth <= MAX_NESTING
        if found.whole:
            try:
                Scanner(inner, found, depth).run()
            except Exception as bug:
                log.debug("the reader of commands failed: %s: %.200s", type(bug).__name__, bug)
                return Opaque(text, FAILED, whole=False)
    commands, redirects = tuple(found.commands), tuple(found.redirects)
    if found.construct is None and found.whole:
        return Commands(text, commands, redirects)
    construct = found.construct if found.whole and found.construct else TOO_LONG
    return Opaque(text, construct, commands, redirects, "\n".join(found.code), found.whole)
