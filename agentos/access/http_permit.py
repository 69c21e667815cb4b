"""What the rules, secrets and quotas of a caller say about its HTTP requests, as the HTTP client asks it."""

from functools import partial

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.permissions.address_judge import judge_address_of
from agentos.services.http.destination import Destination, parse_url
from agentos.services.http.request import Headers, Hop, Permit
from agentos_sdk.errors import CallError

from .callers import Callers


def make_permit(callers: Callers, caller: Caller, first: Destination | None = None) -> Permit:
    """What the rules of this caller say, whenever they are asked.

    ``first`` is the destination of a request that may be sent now. If a rule asks about it, a person has approved: it
    is refused only once another rule asks or denies. All other requests need a rule that allows.
    """
    authorizer, secrets = callers.authorizer, callers.secrets

    def decide(destination: Destination) -> Decision:
        return authorizer.decide(caller, Right("http", destination))

    def follow(method: str, url: str) -> Hop | None:
        try:
            hop = Hop(*parse_url(url, method))
        except ValueError:
            return None
        return hop if decide(hop.destination).effect == "allow" else None

    allowed_by = decide(first) if first is not None else None

    def find_refusal(destination: Destination) -> CallError | None:
        decision = decide(destination)
        is_approved = decision.effect == "ask" and destination == first and decision == allowed_by
        return None if decision.effect == "allow" or is_approved else decision.refusal

    def secret_headers(destination: Destination) -> Headers:
        return secrets.headers_for(authorizer.permissions_of(caller.id).secrets(), destination)

    judge = partial(judge_address_of, authorizer, caller)
    return Permit(judge, follow, find_refusal, secret_headers, secrets.redactor, partial(callers.charge_http, caller))
