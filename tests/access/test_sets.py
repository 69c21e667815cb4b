import pytest

from agentos.access import sets as access_sets
from agentos.access.sets import SetReader, limit_set
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.permissions.rule import PermissionSet, Rule
from agentos.permissions.sets.files import SetSize
from agentos.services.http.secrets import Secrets
from agentos_sdk.errors import BadRequest
from tests.permissions.strategies import NAMES
from tests.support.rights import Grants, Notebook

MAY, ASKS, DENIES, OTHER = (
    Rule("allow", "read", "/data/**", "here"),
    Rule("ask", "read", "/data/x", "here"),
    Rule("deny", "read", "/data/y", "here"),
    Rule("allow", "write", "/data/**", "here"),
)


def test_a_set_within_another_asks_and_denies_as_both_and_has_the_lower_limits() -> None:
    given = PermissionSet("given", (MAY, ASKS), limits=(("memory", 5.0), ("pids", 9.0)))
    held = PermissionSet("held", (OTHER, MAY, ASKS, DENIES), limits=(("memory", 7.0), ("pids", 8.0), ("cpu", 1.0)))

    both = limit_set(given, held)

    assert (both.name, both.rules) == ("given", (MAY, ASKS, DENIES))
    assert dict(both.limits) == {"memory": 5.0, "pids": 8.0, "cpu": 1.0}


async def test_a_set_of_a_request_has_what_the_kernel_knows_and_a_size_for_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = PermissionSet("own", (MAY,))
    priced, unpriced = (SetReader({"own": own}, NAMES, NAMES, Secrets(), priced=each) for each in (True, False))
    agent, operator = (Caller(7, kind, "a", Table(()), Grants(), Notebook()) for kind in ("agent", "operator"))
    costly = {"level": "minimal", "quotas": [{"money": 1, "per": "1h"}]}
    monkeypatch.setattr(access_sets, "MAX_SIZE_OF_OTHERS", SetSize(rules=1, characters=100))
    large = {"level": "minimal", "deny": {"models": ["m", "n"]}}

    assert await unpriced.read("own", "permissions", "SPAWN", agent) is own
    assert [quota.what for quota in (await priced.read(costly, "permissions", "SPAWN", agent)).quotas] == ["money"]
    await unpriced.read(large, "permissions", "SPAWN", operator)
    for wanted, why in (
        (costly, r"permissions\.quotas: one of money needs the model's price"),
        (large, "permissions.*at most 1 rules"),
        ({**costly, "secrets": ["token"]}, "permissions.secrets"),
    ):
        with pytest.raises(BadRequest, match=why):
            await unpriced.read(wanted, "permissions", "SPAWN", agent)
