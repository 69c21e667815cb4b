"""Judges the addresses that a host's name has: some are reached only by a rule for exactly that address and port."""

from agentos.kernel.caller import Caller
from agentos.services.http.addresses import Address, address_text, forbidden_reason
from agentos.services.http.destination import Destination, is_address
from agentos.services.http.egress import JudgeAddress
from agentos_sdk.errors import PermissionDenied

from .authorizer import PermissionAuthorizer

ADDRESS_RULE = "an address that has to be granted by itself"  # in place of a rule's text


def judge_address_of(
    authorizer: PermissionAuthorizer, caller: Caller, destination: Destination | None = None
) -> JudgeAddress:
    """The judge of addresses for this caller.

    ``destination`` is that of a request which was allowed or approved. Where its host is the address itself, a rule
    with methods or a path may have allowed it; an address that a name has needs a rule without them, because a
    connection carries further requests.
    """

    def judge(address: Address, port: int) -> None:
        reason = forbidden_reason(address, port)
        if reason is None:
            return
        host = address_text(address)
        named = destination is not None and destination.host == host
        wanted = destination if destination is not None and named else Destination(None, host, port, None)
        if not authorizer.grants_address(caller, wanted, approved=named):
            raise PermissionDenied(f"HTTP {host}: {reason}", rule=ADDRESS_RULE)

    return judge


def find_tunnel_refusal(
    authorizer: PermissionAuthorizer, caller: Caller, destination: Destination
) -> PermissionDenied | None:
    """Why a tunnel to an address is refused; None for one to a name, which is compared with the one in its TLS."""
    if destination.method is not None or not is_address(destination.host):
        return None
    if authorizer.grants_address(caller, destination, approved=True):
        return None
    why = f"a tunnel to an address, which has no name to check: only a rule for {destination.authority} allows it"
    return PermissionDenied(f"HTTP {destination}: {why}", rule=ADDRESS_RULE)
