"""What starts an agent that isn't started with the kernel: a message, or an event."""

from typing import Literal

from attrs import frozen


@frozen(kw_only=True)
class OnEvent:
    """``start = {...}``: events of this type, or with ``*`` at the end of these types.

    ``prefix``: of STATE_CHANGED only keys that begin with it.
    """

    on_event: str
    prefix: str | None = None

    def __str__(self) -> str:
        return f"event {self.on_event}{f' {self.prefix}' if self.prefix is not None else ''}"


StartReason = Literal["on_message"] | OnEvent
