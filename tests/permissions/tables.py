"""Permission sets as people write them, for properties."""

from hypothesis import strategies as st

from agentos.permissions.levels import LEVELS
from tests.permissions.strategies import TEXTS

_rules = st.fixed_dictionaries(
    {}, optional={kind: st.lists(st.sampled_from(texts), max_size=3, unique=True) for kind, texts in TEXTS.items()}
)
_limits = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["64M", 1 << 20]),
        "max_pids": st.integers(1, 100),
        "cpu_quota": st.sampled_from(["50%", "33%", 12_345, 7.5]),
        "tmp": st.just("1.5G"),
    },
)
_quotas = st.lists(
    st.fixed_dictionaries(
        {"per": st.sampled_from(["1m", "1h", 86400]), "calls": st.integers(0, 10**15)},
        optional={"tokens": st.integers(0, 10**15), "money": st.floats(0, 1e9)},
    ),
    max_size=3,
)
tables = st.fixed_dictionaries(
    {},
    optional={
        "level": st.sampled_from(list(LEVELS)),
        "allow": _rules,
        "ask": _rules,
        "deny": _rules,
        "spawn": st.fixed_dictionaries({}, optional={"limits": _limits}),
        "quotas": _quotas,
    },
)
