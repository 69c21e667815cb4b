from agentos.access.sets import limit_set
from agentos.permissions.rule import PermissionSet, Rule

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
