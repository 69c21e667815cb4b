from pathlib import Path

import pytest

from agentos.agents.spec import AgentSpec
from agentos.config.load import ConfigError, load
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet
from agentos.permissions.sets.files import describe_set
from tests.config.saying import agent, loaded, said

SET = """
[permissions.researcher]
level = "readonly"
spawn = { limits = { memory = "64M" } }
quotas = [{ tokens = 10000, per = "1h" }]

[permissions.researcher.allow]
read = ["/data/**"]
calls = ["THINK"]

[permissions.researcher.deny]
read = ["/data/private/"]

[permissions.researcher.examples]
allow = ["READ /data/x"]
deny = ["READ /data/private/x"]
"""


def of_agent(text: str) -> PermissionSet | None:
    [child] = loaded(text).root.children
    assert isinstance(child, AgentSpec)
    return child.permissions


def test_a_table_becomes_a_set(home: Path) -> None:
    [(name, found)] = loaded(SET).permissions.items()

    assert name == "researcher"
    assert found.name == "permissions.researcher"
    assert describe_set(found)["allow"] == {"calls": ["THINK"], "read": ["/data/**"]}
    assert found.limits == (("memory", 64 << 20),)


def test_without_tables_there_are_no_sets(home: Path) -> None:
    assert loaded("").permissions == {}


def test_an_agent_has_a_level_or_a_set_by_name_or_one_of_its_own(home: Path) -> None:
    script = 'script = "a.py"\n'

    assert of_agent(agent(script)) is None
    assert of_agent(agent(script + 'permissions = "readonly"')) is LEVELS["readonly"]
    assert of_agent(SET + agent(script + 'permissions = "researcher"')) == loaded(SET).permissions["researcher"]
    own = of_agent(agent(script + 'permissions = { level = "readonly", allow = { read = ["/data/**"] } }'))
    assert own is not None
    assert own.name == "permissions of w"
    assert describe_set(own) == {"level": "readonly", "allow": {"read": ["/data/**"]}}


def test_mistakes_have_lines(home: Path) -> None:
    assert said(SET.replace('"/data/**"', '"/data/**", "/data/x"').replace("10000", "-1")) == [
        ("agentos.toml:5: permissions.researcher.quotas[0].tokens: expected a whole number from 0 to 10^15, got -1"),
        (
            "agentos.toml:8: permissions.researcher.allow.read[1]: "
            "'/data/x' has no effect: allow.read[0] '/data/**' allows all of it already"
        ),
    ]


def test_an_example_that_comes_out_otherwise_is_a_mistake(home: Path) -> None:
    [mistake] = said(SET.replace('["READ /data/x"]', '["WRITE /data/x"]'))

    assert mistake == (
        "agentos.toml:15: permissions.researcher.examples.allow[0]: 'WRITE /data/x' is denied: "
        "WRITE: no rule of permissions.researcher allows it"
    )


def test_a_set_has_no_levels_name(home: Path) -> None:
    assert said("[permissions.sandboxed]\n") == [
        "agentos.toml:1: permissions.sandboxed: 'sandboxed' is a level: choose another name"
    ]
    [mistake] = said('[permissions."my set"]\n')
    assert mistake.startswith("agentos.toml:1: permissions['my set']: expected a name of 1 to 64")


def test_permissions_are_tables(home: Path) -> None:
    assert said("permissions = 7\n") == [
        "agentos.toml:1: permissions: expected a table for each set, [permissions.NAME]"
    ]
    assert said("[permissions]\nmine = 7\n") == ["agentos.toml:2: permissions.mine: expected keys and values, got 7"]


def test_an_agent_that_names_no_set_is_told_the_nearest(home: Path) -> None:
    text = SET + agent('script = "a.py"\npermissions = "reseacher"')

    [mistake] = said(text)
    assert mistake.endswith("permissions: no level or permission set is called 'reseacher', did you mean researcher?")


def test_a_set_that_is_wrong_is_told_once_even_if_an_agent_names_it(home: Path) -> None:
    text = '[permissions.mine]\nlevel = "lots"\n' + agent('script = "a.py"\npermissions = "mine"')

    assert said(text) == ["agentos.toml:2: permissions.mine.level: no level is called 'lots'"]


def test_a_quota_of_money_needs_a_price(home: Path) -> None:
    text = '[permissions.mine]\nquotas = [{ money = 1, per = "1d" }]\n[llm]\nprovider = "offline"\n'

    assert said(text) == [
        "agentos.toml:2: permissions.mine.quotas: "
        "a budget of money needs the model's price, and there is no [llm.prices]"
    ]
    [mistake] = said(
        agent('script = "a.py"\npermissions = { quotas = [{ money = 1, per = "1d" }] }')
        + '\n[llm]\nprovider = "offline"\n'
    )
    assert "supervisor.children[0].permissions.quotas: a budget of money needs" in mistake


def test_home_is_the_operators(home: Path) -> None:
    assert said('[permissions.mine.allow]\nread = ["~/.ssh/config"]\n')[0].endswith("denies all of it")


def test_a_grant_of_a_directory_by_its_bare_name_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = f'[permissions.x]\nallow.read = ["{tmp_path}/data", "{tmp_path}/data/**"]\n'
    (tmp_path / "agentos.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"allow.read\[0\]: .*/data is a directory: write .*/data/\*\*"):
        load(tmp_path / "agentos.toml")
