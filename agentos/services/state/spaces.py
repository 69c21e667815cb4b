"""Names of state's spaces and of the accounts that their keys are charged to.

A space holds the keys of one scope. :data:`GLOBAL` is the global one. An agent's private space has the name of its
account, such as ``boss/worker``, so it belongs to the agent's parent and name together. The space of a session is the
account followed by ``~`` and a number.
"""

import itertools
from typing import Final

GLOBAL: Final = ""
MAX_CODE_POINT = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)  # code points that aren't characters


def account_of(space: str) -> str:
    """The account that owns a private space."""
    return space.partition("~")[0]


def is_session(space: str) -> bool:
    return "~" in space


def list_accounts(account: str) -> list[str]:
    """An account and those above it, the outermost first; none for the empty one."""
    return list(itertools.accumulate(account.split("/"), "{}/{}".format)) if account else []


def end_of_prefix(prefix: str) -> str | None:
    """The first text behind all that begin with ``prefix``; None if there is none."""
    start = prefix.rstrip(chr(MAX_CODE_POINT))
    if not start:
        return None
    following = ord(start[-1]) + 1
    return start[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)
