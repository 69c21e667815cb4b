"""Reads a text for ``bash --noprofile --norc -p -c --``, or the words of a command that no shell reads.

The subset: simple commands of literal words, joined by ``&&``, ``||``, ``;``, ``|`` and newlines, redirected to literal
names, with here-documents whose delimiter is quoted. ``$NAME``, a glob and a leading ``~`` make an argument one that is
not known. Everything else makes the text opaque; no text raises.
"""

import logging
import shlex
from collections.abc import Sequence

from .frames import MAX_NESTING, MAX_PIECES, Findings
from .reading import Command, Commands, Opaque, Reading, Word
from .scanner import Scanner

log = logging.getLogger(__name__)

MAX_LENGTH = 64 << 10  # bytes, of a text and of all texts nested in it
FAILED = "a text that can't be read because of an error in the reader"
TOO_LONG = f"a text of more than {MAX_LENGTH} bytes or {MAX_PIECES} words, or nested more than {MAX_NESTING} times"


def parse_text(text: str) -> Reading:
    """What bash runs for ``text``."""
    findings = Findings()
    findings.texts.append((text, 0))
    return _parse(text, findings)


def parse_words(words: Sequence[str]) -> Reading:
    """What starting a program with these arguments runs: themselves, and what the program is known to run."""
    findings = Findings()
    text = shlex.join(words)
    if words and words[0]:
        findings.add_command(Command(tuple(Word(word, shlex.quote(word)) for word in words)), 0)
    else:
        findings.note_construct("an empty command")
    return _parse(text, findings)


def _parse(text: str, findings: Findings) -> Reading:
    left = 2 * MAX_LENGTH
    while findings.texts and findings.complete:
        inner, depth = findings.texts.pop()
        length = len(inner.encode(errors="replace"))
        left -= length
        findings.complete = length <= MAX_LENGTH and left >= 0 and depth <= MAX_NESTING
        if findings.complete:
            try:
                Scanner(inner, findings, depth).run()
            except Exception as bug:
                log.debug("the reader of commands failed: %s: %.200s", type(bug).__name__, bug)
                return Opaque(text, FAILED, complete=False)
    commands, redirects = tuple(findings.commands), tuple(findings.redirects)
    if findings.construct is None and findings.complete:
        return Commands(text, commands, redirects)
    construct = findings.construct if findings.complete and findings.construct else TOO_LONG
    return Opaque(text, construct, commands, redirects, "\n".join(findings.code), findings.complete)
