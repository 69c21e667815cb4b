from pathlib import Path

import pytest

from agentos.agents.spec import AgentSpec, GroupSpec
from agentos.llm.settings import LLMSettings, OfflineSettings, Price, Retry, Share, Timeouts
from agentos.services.quotas import MONEY_UNITS, Quota
from tests.config.saying import agent, loaded, said

WHOLE = """
[llm]
provider = "openai"
model = "llama"
base_url = "http://127.0.0.1:8080/v1"
openai_endpoint = true
concurrency = 4
max_tokens = 1000
per_agent = 5
in_all = 50
keep_contents = 0
cassette = "tests/answers.jsonl"
budget = [{ money = 2.5, per = "1d" }]
currency = "EUR"
default_budget = [{ tokens = 50, per = "1h" }]
timeouts = { connect = "1s", first_token = "20s", idle = "5s", total = "1m" }

[llm.retry]
attempts = 2
patience = "1m"
first = "1s"
factor = 3
max = "9s"
jitter = 0
breaker = 4
cooldown = "5s"

[llm.prices]
llama = { input = 0.1, output = 0.4, cache_read = 0, cache_creation_1h = 0.2 }

[llm.offline]
rules = "rules.toml"
base = "1s"
per_input = "1ms"
per_output = "2ms"
faults = 0.5
seed = 7
"""


def test_a_whole_table_becomes_settings(home: Path) -> None:
    (home / "rules.toml").write_text('[[rule]]\nmatch = "a"\nreply = "b"\n')

    assert loaded(WHOLE).llm == LLMSettings(
        provider="openai",
        model="llama",
        budget=(Quota("money", 5 * MONEY_UNITS // 2, 86400.0),),
        default_budget=(Quota("tokens", 50, 3600.0),),
        base_url="http://127.0.0.1:8080/v1",
        openai_endpoint=True,
        concurrency=4,
        max_tokens=1000,
        per_agent=5,
        in_all=50,
        keep_contents=0,
        prices={"llama": Price(0.1, 0.4, 0.0, None, 0.2)},
        currency="EUR",
        timeouts=Timeouts(1.0, 20.0, 5.0, 60.0),
        retry=Retry(attempts=2, patience=60.0, first=1.0, factor=3.0, max=9.0, jitter=0.0, breaker=4, cooldown=5.0),
        offline=OfflineSettings(str(home / "rules.toml"), 1.0, 0.001, 0.002, 0.5, 7),
        cassette=str(home / "tests/answers.jsonl"),
    )


def test_without_a_table_everything_is_as_it_is_by_default(home: Path) -> None:
    assert loaded("").llm == LLMSettings()


def test_agents_and_supervisors_have_a_weight_a_class_and_a_budget(home: Path) -> None:
    config = loaded(
        """
        [[supervisor.children]]
        name = "team"
        type = "supervisor"
        llm = { weight = 3, class = "batch" }
        [[supervisor.children.children]]
        name = "w"
        script = "a.py"
        llm = { budget = [{ tokens = 100, calls = 3, per = "1h" }, { tokens = 1000, per = "1d" }] }
        """
    )

    [team] = config.root.children
    assert isinstance(team, GroupSpec)
    assert team.llm == Share(weight=3.0, class_="batch")
    [worker] = team.children
    assert isinstance(worker, AgentSpec)
    assert worker.llm.budget == (
        Quota("tokens", 100, 3600.0),
        Quota("calls", 3, 3600.0),
        Quota("tokens", 1000, 86400.0),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[llm]\nprovider = "gpt"', "2: llm.provider: expected offline, gemini, openai or anthropic"),
        ('[llm]\nbase_url = "ftp://x"', "2: llm.base_url: expected an http:// or https:// URL"),
        (
            '[llm]\nbase_url = "http://user:secret@host/v1"',
            "expected an http:// or https:// URL, without a user and a password",
        ),
        ("[llm]\nconcurrency = 0", "2: llm.concurrency: expected a number from 1 to 1000"),
        ("[llm]\nkeep_contents = -1", "2: llm.keep_contents: expected a number from 0 to 1000"),
        ("[llm]\nconcurency = 1", "concurency"),
        ('[llm]\ntimeouts = { idle = "0s" }', "2: llm.timeouts.idle: expected a duration above 0s"),
        ("[llm]\nretry = { attempts = 0 }", "2: llm.retry.attempts: expected a whole number from 1 up"),
        ("[llm.offline]\nfaults = 2.0", "2: llm.offline.faults: expected a number from 0 to 1"),
        ('[llm.prices]\n"m" = { input = 1 }', "llm.prices.m"),
        ("[llm]\nbudget = [{ tokens = 5 }]", "llm.budget[0]"),
        ('[llm]\nbudget = [{ tokens = -5, per = "1h" }]', "2: llm.budget[0].tokens: expected a whole number from 0"),
        ('[llm]\nbudget = [{ per = "1h" }]', "2: llm.budget[0]: expected at least one of tokens, calls and money"),
        (
            '[llm]\nbudget = [{ tokens = 1, per = "1h" }, { tokens = 2, per = "1h" }]',
            "2: llm.budget[1].tokens: there is a budget of tokens per 3600 s already",
        ),
        ('[llm]\nbudget = [{ tokens = 5, per = "1500ms" }]', "expected a window of whole seconds"),
        ('[llm]\nbudget = [{ tokens = 5, per = "32d" }]', "expected a window of whole seconds, such as 1h, up to 31d"),
        (agent('script = "a.py"\nllm = { weight = 0 }'), "4: supervisor.children[0].llm.weight: expected a weight"),
        (
            agent('script = "a.py"\nllm = { class = "slow" }'),
            "4: supervisor.children[0].llm.class: expected interactive, normal or batch, got 'slow'",
        ),
        (agent('script = "a.py"\nllm = 3'), "supervisor.children[0].llm"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_its_path(home: Path, text: str, told: str) -> None:
    [mistake] = said(text)

    assert told in mistake


@pytest.mark.parametrize(
    "llm",
    [
        '[llm]\nprovider = "offline"\n',
        '[llm]\nmodel = "m"\n',
        '[llm]\nmodel = "m"\n[llm.prices]\nother = { input = 1, output = 1 }\n',
        '[llm]\nmodel = "claude-haiku-4-5"\ncurrency = "EUR"\n',
    ],
)
def test_money_without_the_model_s_price_is_refused(home: Path, llm: str) -> None:
    [mistake] = said(llm + agent('script = "a.py"\nllm = { budget = [{ money = 1, per = "1h" }] }'))

    assert "supervisor.children[0].llm.budget: a budget of money needs the model's price" in mistake


def test_a_published_price_is_enough_for_a_budget_of_money(home: Path) -> None:
    settings = loaded('[llm]\nmodel = "claude-haiku-4-5-20251001"\nbudget = [{ money = 1, per = "1h" }]').llm

    assert not settings.prices


def test_a_currency_is_a_code_of_three_letters(home: Path) -> None:
    [mistake] = said('[llm]\ncurrency = "euros"')

    assert "2: llm.currency: expected three capitals, as EUR" in mistake


def test_money_of_all_agents_needs_a_price_too(home: Path) -> None:
    [mistake] = said('[llm]\nbudget = [{ money = 1, per = "1h" }]\nprovider = "offline"')

    assert "2: llm.budget: a budget of money needs the model's price, and there is no [llm.prices]" in mistake


def test_what_is_wrong_with_the_offline_rules_is_told_with_all_else(home: Path) -> None:
    (home / "rules.toml").write_text('[[rule]]\nmatch = "("\nreply = "b"\n')

    mistakes = said('[llm.offline]\nrules = "rules.toml"\nseed = "x"')

    assert len(mistakes) == 2
    assert f"2: llm.offline.rules: {home}/rules.toml: rule[0].match: not a regular expression" in mistakes[0]


def test_offline_rules_that_are_not_there_are_a_mistake(home: Path) -> None:
    [mistake] = said('[llm.offline]\nrules = "nowhere.toml"')

    assert "llm.offline.rules" in mistake
    assert "nowhere.toml" in mistake


def test_the_default_budget_is_200000_tokens_per_day_or_none_or_another(home: Path) -> None:
    assert loaded("").llm.default_budget == (Quota("tokens", 200_000, 86400.0),)
    assert loaded('[llm]\ndefault_budget = "none"').llm.default_budget == ()


def test_mistakes_in_the_default_budget_name_it(home: Path) -> None:
    assert said('[llm]\ndefault_budget = "non"') == [
        "agentos.toml:2: llm.default_budget: expected an array or none, got 'non'"
    ]
    [mistake] = said('[llm]\ndefault_budget = [{ money = 1, per = "1d" }]\nprovider = "offline"')
    assert mistake.startswith("agentos.toml:2: llm.default_budget: a budget of money needs the model's price")
