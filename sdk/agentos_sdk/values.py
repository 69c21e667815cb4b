"""Values of the wire that the kernel's own rooms use as well: one class per idea, without any request or reply."""

from attrs import frozen


@frozen
class Line:
    """One line of an agent's output.

    ``at`` is seconds since the epoch, ``stream`` is stdout, stderr or kernel.
    """

    at: float
    stream: str
    text: str
