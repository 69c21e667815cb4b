from pathlib import Path

import pytest

from agentos.llm.settings import ModelLimits, ProviderSettings
from tests.config.saying import loaded, said

TWO = """
[llm]
model = "fast"
fallback_after = "3s"
[llm.providers.google]
type = "gemini"
keys = ["env:A", "file:b.key"]
models = ["gemini-*"]
[llm.providers.local]
type = "openai"
base_url = "http://127.0.0.1:1/v1"
models = ["llama"]
concurrency = 3
"""


def test_providers_aliases_and_limits_become_settings(home: Path) -> None:
    limits = '[llm.limits.llama]\nrpm = 3\ntpm = 500\nfirst_token = "3s"\nidle = "4s"\nlacks = ["images"]\n'
    aliases = '[llm.aliases]\nfast = ["gemini-2", "llama"]\n"gpt-*" = "fast"\nboth = ["llama", "fast"]\n'

    llm = loaded(TWO + aliases + limits).llm

    assert llm.providers == {
        "google": ProviderSettings("gemini", keys=("env:A", f"file:{home / 'b.key'}"), models=("gemini-*",)),
        "local": ProviderSettings("openai", "http://127.0.0.1:1/v1", models=("llama",), concurrency=3),
    }
    assert llm.aliases == {
        "fast": ("gemini-2", "llama"),
        "gpt-*": ("gemini-2", "llama"),
        "both": ("llama", "gemini-2"),
    }
    assert llm.limits == {"llama": ModelLimits(3, 500, 3.0, 4.0, ("images",))}
    assert llm.fallback_after == 3.0


def test_aliases_and_limits_need_no_table_of_providers(home: Path) -> None:
    llm = loaded('[llm]\nprovider = "offline"\n[llm.aliases]\nfast = ["a", "b"]\n').llm

    assert (llm.provider, llm.providers, llm.aliases) == ("offline", {}, {"fast": ("a", "b")})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[llm.aliases]\nfast = []", "llm.aliases.fast: expected a model, or a list of models"),
        ("[llm.aliases]\nfast = [1]", "llm.aliases.fast: expected a model, or a list of models"),
        ('[llm.aliases]\nfast = "a b"', "llm.aliases.fast[0]: expected the name of a model or of an alias"),
        ('[llm.aliases]\n"gpt-*" = "a"\nb = "gpt-*"', "llm.aliases.b[0]: expected the name of a model or of an alias"),
        ('[llm.aliases]\n"a b" = "c"', "expected a name such as a model's"),
        ('[llm.aliases]\na = "b"\nb = ["c", "b"]', "an alias can't lead to itself: b → b"),
        (TWO.replace("fast", "gpt-5"), "llm.model: no provider has 'gpt-5': add it to the models of one"),
        (TWO.replace('model = "fast"', ""), "llm.model: required beside [llm.providers]"),
        (
            TWO.replace("fast", "llama").replace("[llm]", '[llm]\nprovider = "gemini"'),
            "llm.provider: [llm.providers] st",
        ),
        (
            TWO.replace("fast", "llama").replace('"env:A"', '"sk-secret"'),
            "keys[0]: expected where the key is, as 'env:",
        ),
        (
            TWO.replace("fast", "llama").replace('type = "openai"', ""),
            "llm.providers.local.type: required field missing",
        ),
        (TWO + '[llm.aliases]\nfast = ["gpt-5", "llama"]', "llm.aliases.fast[0]: no provider has 'gpt-5'"),
        ('[llm.limits."gpt-*"]\nrpm = 1', "llm.limits['gpt-*']: expected a model's name, which this isn't"),
        (
            '[llm.aliases]\nfast = "a"\n[llm.limits.fast]\nrpm = 1',
            "llm.limits.fast: expected a model's name, which this isn't: an alias",
        ),
        (
            TWO.replace("fast", "llama").replace("//127.0.0.1", "//ada:sk-secret@127.0.0.1"),
            "llm.providers.local.base_url: expected an http:// or https:// URL, without a user and a password",
        ),
        ("[llm.limits.m]\nrpm = 0", "llm.limits.m.rpm: expected a whole number from 1 up"),
        ('[llm.limits.m]\nlacks = ["ears"]', "llm.limits.m.lacks[0]: expected images, tools or schema"),
        (
            '[llm]\nmodel = "m"\n[llm.providers.x]\ntype = "offline"\nkeys = ["env:A"]',
            "llm.providers.x.keys: a provider of type offline has none",
        ),
        (
            '[llm]\nmodel = "m"\n[llm.providers.x]\ntype = "openai"\nprompt_caching = false',
            "llm.providers.x.prompt_caching: a provider of type anthropic has it, no other",
        ),
        ('[llm]\nprompt_caching = "no"', "llm.prompt_caching: expected true or false"),
    ],
)
def test_a_mistake_is_told_with_its_path(home: Path, text: str, told: str) -> None:
    mistakes = said(text)

    assert any(told in mistake for mistake in mistakes), mistakes
    assert not any("sk-secret" in mistake for mistake in mistakes)


def test_a_type_that_is_wrong_is_not_told_as_missing_too(home: Path) -> None:
    [mistake] = said(TWO.replace("fast", "llama").replace('type = "openai"', "type = 7"))

    assert mistake.partition(": ")[2].startswith("llm.providers.local.type: expected")
