"""Mistakes that are made often, told with what to write instead."""

from pathlib import Path

import pytest

from tests.config.saying import agent, loaded, said

FIVE = 'command = ["true"]\n'


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (agent(f"{FIVE}shutdown = 5s"), ': text stands in quotes, did you mean "5s"?'),
        (agent(f"{FIVE}limits = {{ memory = 64M }}"), ': text stands in quotes, did you mean "64M"?'),
        ("[kernel]\nlog_level = info # not much", ': text stands in quotes, did you mean "info"?'),
        (agent('command = ["true]'), ": a text isn't closed, a quote is missing"),
        (agent(f"{FIVE}env = {{ A = 'x }}"), ": a text isn't closed, a quote is missing"),
        ('[llm]\nmodel = """x', ": a text isn't closed, a quote is missing"),
        (agent(f'{FIVE}name = "other"'), ": the key stands in this table twice"),
        ("[kernel]\nlog_level = ]", "not TOML: invalid value at column 13"),
        (agent(f'{FIVE}llm.budget = [{{ tokens = "1M", per = "1h" }}]'), "got '1M', did you mean 1_000_000?"),
        (agent(f'{FIVE}llm.budget = [{{ calls = "1.5k", per = "1h" }}]'), "got '1.5k', did you mean 1_500?"),
        (agent(f'{FIVE}llm.budget = {{ calls = 5, per = "1h" }}'), ": put them into brackets, as in [{ … }]"),
        ('[llm]\nprovider = "ollama"', 'with its base_url, such as "http://127.0.0.1:11434/v1" for Ollama'),
        ('[supervisor]\nname = "root"', "name: a key of a child: each of [[agents]] has its own"),
        ('[supervisor]\nbackoff = { first = "1s" }', "backoff: a key of a child: each of [[agents]] has its own"),
    ],
)
def test_a_mistake_that_is_made_often_is_told_with_its_fix(home: Path, text: str, end: str) -> None:
    [mistake] = said(text)

    assert mistake.endswith(end)


def test_a_provider_of_another_kind_is_told_which_one_it_is(home: Path) -> None:
    mistakes = said('[llm]\nmodel = "a"\n[llm.providers.local]\ntype = "vllm"\nmodels = ["a"]')

    assert any('(Ollama, vLLM, LM Studio, Groq) is "openai", with its base_url' in each for each in mistakes)


def test_a_byte_order_mark_is_no_mistake(home: Path) -> None:

    assert loaded("\ufeff" + agent(FIVE)).root.children[0].name == "w"
    assert said("\ufeff" + agent("comand = []"))[-1].endswith("did you mean command?")


@pytest.mark.parametrize("top", ["agents", "supervisor.children"])
def test_fifty_supervisors_may_be_nested(home: Path, top: str) -> None:
    groups = "".join(f'[[{top}{".children" * n}]]\nname = "s{n}"\ntype = "supervisor"\n' for n in range(50))
    leaf = f'[[{top}{".children" * 50}]]\n{FIVE}name = "leaf"\nllm.budget = [{{ calls = 5, per = "1h" }}]\n'

    assert loaded(groups + leaf).root.children[0].name == "s0"
