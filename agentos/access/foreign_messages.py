"""Messages out of a file of another kernel's: whoever wrote the file chose all of it, also their senders.

What must stay true: none is the operator's, the kernel's or an agent's of this kernel, and none is sent in the future.
"""

import time

from agentos.agents.spec import check_name
from agentos.services.mail.mailbox import Message
from agentos_sdk.errors import CallError

UNNAMED = "?"  # in the place of a name that no caller may take


def make_foreign(name: str, body: bytes, sent_at: float, number: int) -> Message:
    """A message from a guest that isn't there: a program trusts it as any other's, and can't answer by its id."""
    try:
        check_name(name, "from_name")
    except CallError:
        name = UNNAMED
    now = time.time()
    sent_at = min(sent_at, now)
    return Message(0, name, "guest", body, sent_at, time.monotonic() - (now - sent_at), number)
