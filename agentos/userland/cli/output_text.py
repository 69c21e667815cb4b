"""Text of agents, made safe for a terminal: control characters are escaped, except those of SGR colours.

An escape sequence can do more than colour: set the window's title, write the clipboard (OSC 52), overwrite other lines.
SGR is CSI ... m. Codes that set or reset a colour or the style of letters pass, except hidden (8) and blinking (5, 6)
letters. A colour ends with its line.
"""

import os
import re
import sys

from .common import printable

RESET = "\x1b[0m"
COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)  # of agents' names
_CODE = r"(?:0?[0-47]|9|2[1-57-9]|[349][0-7]|[34]9|10[0-7]|[34]8;5;[0-9]{1,3}|[34]8;2(?:;[0-9]{1,3}){3})"
_SGR = re.compile(rf"(\x1b\[(?:{_CODE}(?:;{_CODE}){{0,7}})?m)")
_BEGUN_SGR = re.compile(r"\x1b(?:\[[0-9;]{0,64})?\Z")


def shows_colours() -> bool:
    """Whether stdout is a terminal whose user wants colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def colour_of(name: str) -> int:
    """The SGR code for an agent's name."""
    return 1 if name == "kernel" else COLOURS[sum(name.encode()) % len(COLOURS)]


def printable_output(text: str, coloured: bool) -> str:
    """A line of an agent's output with control characters escaped, except those of SGR colours if ``coloured``."""
    if text.isprintable() or not coloured:
        return printable(text)
    shown = _escape(text)
    return shown + RESET if "\x1b" in shown else shown


def _escape(text: str) -> str:
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(_SGR.split(text)))


class OutputPrinter:
    """Prints a stream piece by piece: unchanged to a file or pipe, to a terminal as :func:`printable_output` does.

    A context manager: its end prints what was held back, a sequence that wasn't complete.
    """

    def __init__(self, err: bool) -> None:
        self._stream = (sys.stderr if err else sys.stdout).buffer
        self._terminal = self._stream.isatty()
        self._coloured = self._terminal and not os.environ.get("NO_COLOR")
        self._begun = ""
        self._styled = False  # the line that isn't complete yet has a colour

    def __enter__(self) -> "OutputPrinter":
        return self

    def __exit__(self, *exc: object) -> None:
        self._write(printable(self._begun) + (RESET if self._styled else ""))

    def print(self, text: str) -> None:
        """Print the next piece at once, except the beginning of a sequence that may be a colour."""
        if not self._coloured:
            self._write("\n".join(map(printable, text.split("\n"))) if self._terminal else text)
            return
        text = self._begun + text
        begun = _BEGUN_SGR.search(text)
        self._begun = begun[0] if begun else ""
        *lines, rest = text[: len(text) - len(self._begun)].split("\n")
        self._write("".join(self._escape_part(line, "\n") for line in lines) + self._escape_part(rest, ""))

    def _escape_part(self, part: str, end: str) -> str:
        shown = _escape(part)
        self._styled |= "\x1b" in shown
        if end and self._styled:
            self._styled, end = False, RESET + end
        return shown + end

    def _write(self, text: str) -> None:
        self._stream.write(text.encode(errors="replace"))
        self._stream.flush()
