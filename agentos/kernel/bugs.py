"""What becomes of a bug of ours: it is logged under a reference, and whoever met it hears that and no more."""

import logging
import secrets

from agentos_sdk.errors import Internal

log = logging.getLogger(__name__)


def internal(bug: BaseException, where: str) -> Internal:
    """The error to reply. ``where`` is for the log: which part of the kernel it was."""
    reference = secrets.token_hex(4)
    log.error("bug %s in %s", reference, where, exc_info=bug)
    return Internal(f"a bug in the kernel: look for {reference} in its log")
