"""Messages that are leased, handed out one by one, and acknowledged when the loop goes on."""

from __future__ import annotations

from agentos_sdk.errors import NotFound, checked, from_reply

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .client_calls import Calls

WAIT = 60.0  # seconds of one RECV


def read(client: Calls, lease: float) -> Iterator[dict[str, Any]]:
    while True:
        reply = checked(client.recv_messages(1, WAIT, lease=lease))
        for message in reply["messages"]:
            yield message
            acked = client.ack_messages([message["id"]])
            if not acked["success"] and acked["code"] != NotFound.code:  # if the lease is over, it comes again
                raise from_reply(acked)
