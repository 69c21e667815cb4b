"""An agent's share of the model: its own budget, or the default budget of an agent that isn't trusted."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from agentos.llm.settings import QueuePath, Share
from agentos.permissions.levels import default, is_trusted
from agentos.services.quotas import Quota, limits_model, merge_quotas

from .spec import AgentSpec


def choose_share(spec: AgentSpec, above: QueuePath, default_budget: Sequence[Quota]) -> Share:
    """The share of an agent below the accounts ``above``, of which the first is the kernel's.

    It gets the default budget if its level is sandboxed or narrower and neither it nor an account between it and the
    kernel's has a budget of the model.
    """
    share, given, shares = spec.share, spec.permissions or default(spec.jailed), [one.share for one in above[1:]]
    if not default_budget or is_trusted(given) or any(limits_model(one.budget) for one in (share, *shares)):
        return share
    return _add_budget(share, tuple(default_budget))


@lru_cache(maxsize=64)  # one value for all agents with the same: a thousand that have ended are remembered
def _add_budget(share: Share, budget: tuple[Quota, ...]) -> Share:
    return replace(share, budget=merge_quotas(share.budget, budget), by_default=True)
