"""A program that searches files for a regular expression, in a process that can be ended if it takes too long.

It reads a JSON object with ``path``, ``pattern`` and ``most`` from standard input, and prints one with ``found``, lines
``name:line: text``, or with ``error``. Without ``path`` it searches ``texts``, pairs of a name and a content. It
imports the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator

MAX_VISITED = 20_000  # files looked at by one call
MAX_SEARCHED = 1 << 20  # bytes of a file that is searched
HIDDEN = {".git", "__pycache__", "node_modules", ".venv"}


def search_texts(texts: Iterable[tuple[str, str]], pattern: re.Pattern[str], most: int) -> list[str]:
    """Lines of texts that match, as ``name:line: text``; of a text that is searched all, beyond ``most`` as well."""
    found: list[str] = []
    for name, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line[:1000]):
                found.append(f"{name}:{number}: {line[:300]}")
        if len(found) > most:
            break
    return found


def read_texts(path: str) -> Iterator[tuple[str, str]]:
    """Names and contents of the file at a path, or of those below it; binary files are left out."""
    for file in [path] if os.path.isfile(path) else files_below(path):
        try:
            with open(file, "rb") as opened:
                data = opened.read(MAX_SEARCHED)
        except OSError:  # not readable for the agent, or gone by now
            continue
        if b"\0" not in data[:1024]:
            yield shown_name(os.path.relpath(file)), data.decode(errors="replace")


def files_below(path: str) -> Iterator[str]:
    """Regular files below a directory, without following links; directories of tools such as .git are left out."""
    visited, stubs = 0, _mount_points()
    for directory, names, files in os.walk(path):
        names[:] = sorted(set(names) - HIDDEN)
        for name in sorted(files):
            visited += 1
            if visited > MAX_VISITED:
                return
            file = os.path.join(directory, name)
            if os.path.isfile(file) and not os.path.islink(file) and not _is_stub(file, stubs):
                yield file


def _mount_points() -> set[str]:
    """Where something is mounted. A name that the kernel keeps from being made is an empty file with a mount on it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            found = [line.split(" ")[4] for line in file]
    except OSError:
        return set()
    return {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), each) for each in found}


def _is_stub(file: str, mounts: set[str]) -> bool:
    return os.path.realpath(file) in mounts and os.path.getsize(file) == 0


def shown_name(name: str) -> str:
    """A name of one line; bytes that are no UTF-8 and control characters are escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]


def main() -> None:
    request = json.load(sys.stdin)
    try:
        pattern = re.compile(request["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        json.dump({"error": f"pattern: not a regular expression: {error}"}, sys.stdout)
    else:
        texts = read_texts(request["path"]) if "path" in request else request["texts"]
        json.dump({"found": search_texts(texts, pattern, request["most"])}, sys.stdout)


if __name__ == "__main__":
    main()
