"""Suggestions for a word that isn't known: the closest known one, or ours for what other tools call it."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_COMPARED = 64  # characters of a word that are compared
SYNONYMS = {
    "always": "permanent",
    "on-failure": "transient",
    "never": "temporary",
    "no": "temporary",
    "cpu": "cpu_quota",
    "cpus": "cpu_quota",
    "mem": "memory",
    "pids": "max_pids",
    "cmd": "command",
    "environment": "env",
    "exec": "commands",
    "net": "network",
    "http": "domains",
    "sandbox": "sandboxed",
}


def suggest_name(word: str, known: Iterable[str]) -> str:
    """``, did you mean NAME?``, to append to an error; empty if no known word is close."""
    from difflib import get_close_matches  # takes 3 ms, and only a mistake needs it

    names = list(known)
    synonym = SYNONYMS.get(word.lower())
    near = [synonym] if synonym in names else get_close_matches(word[:MAX_COMPARED], names, n=1)
    return f", did you mean {near[0]}?" if near else ""
