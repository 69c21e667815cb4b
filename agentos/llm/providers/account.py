"""A vendor account: its API key, and errors of the vendor without the key in them."""

import email.utils
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import httpx2
from attrs import field, frozen

from agentos.llm.answers.vendor_errors import message_of
from agentos.services.http.secrets import Redactor

from .key_echo import KEY_PIECE, secret_part, shows_key
from .provider import Denied, Failing, ProviderError, RateLimited, Rejected, Unforeseen

MAX_MESSAGE = 500  # characters of a vendor's error message that are passed on

ErrorOfStatus: TypeAlias = Callable[[int, object, float | None], ProviderError]
"""Makes the error from an HTTP status, the response's body and the seconds that its headers ask to wait."""

PASSING = (408, 409, 425)  # statuses below 500 of what may pass by itself
FINAL = (501, 505)  # statuses from 500 on of what the server never does


@frozen
class ProviderAccount:
    """``variable`` is the environment variable of the key."""

    vendor: str
    key: str | None = field(repr=False)
    variable: str

    def error_of_status(self, status: int, message: object, after: float | None = None) -> ProviderError:
        """The error for an HTTP status and the response's message."""
        if status in (401, 402, 403):
            return self.access_denied(status)
        said = message if isinstance(message, str) and "<" not in message else message_of(message) or message
        text = f"{self.vendor}: {self.clean_message(said)} ({status})"
        if status == 429:
            return RateLimited(text, after)
        if status in PASSING or (status >= 500 and status not in FINAL):
            return Failing(text, after)
        return Rejected(text, status=status)

    def unforeseen(self, what: str) -> Unforeseen:
        """An error for what can't be understood; ``what`` is appended to the vendor's name."""
        return Unforeseen(f"{self.vendor} {what}")

    def access_denied(self, status: int) -> Denied:
        """An error without the vendor's message: vendors often repeat the key, partly masked."""
        if self.key is None:
            return Denied(f"{self.vendor} needs a key ({status}): set {self.variable}", status=status)
        text = f"{self.vendor} does not accept the key in {self.variable}, or not for this ({status})"
        return Denied(text, status=status)

    def connection_error(self, error: httpx2.TransportError) -> Failing:
        """The error for a failed connection or a broken stream."""
        if isinstance(error, httpx2.ConnectTimeout):
            return Failing(f"{self.vendor} can't be reached: no connection in time")
        what = "can't be reached" if isinstance(error, httpx2.ConnectError) else "broke the connection"
        return Failing(f"{self.vendor} {what}: {self.clean_message(str(error) or type(error).__name__)}")

    def make_redactor(self) -> Redactor:
        """Replaces the key in an answer. One of a few characters, as servers without keys have it, may be any word."""
        return Redactor([self.key] if self.key and len(secret_part(self.key)) >= KEY_PIECE else [])

    def clean_message(self, message: object) -> str:
        """A message from outside on one line, limited in length and without the key."""
        text = "".join(each if each.isprintable() else " " for each in str(message)[: 4 * MAX_MESSAGE])
        text = " ".join(text.split())
        text = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
        return "message withheld, it contains the key" if self.key and shows_key(text, self.key) else text


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """How long a response's headers ask to wait: ``Retry-After`` in seconds or as a date, or OpenAI's own header."""
    if (milliseconds := parse_seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    message = headers.get("retry-after")
    if message is None or (number := parse_seconds(message)) is not None:
        return number if message else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(message).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def parse_seconds(message: str | None) -> float | None:
    """Parse a number from outside; ``None`` if it is negative, infinite or no number."""
    try:
        number = float(message or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
