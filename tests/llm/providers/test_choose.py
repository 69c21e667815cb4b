"""Which provider is chosen, what it costs before the first question, and what is said when there is none."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from agentos.llm.models.api_keys import Variable, Variables
from agentos.llm.open_model import read_offline_rules
from agentos.llm.providers.choose import EXTRAS, NoProvider, ProviderChoice, choose_provider, connect
from agentos.llm.providers.keys import choose_providers
from agentos.llm.providers.provider import Denied, Failing, Message, Question
from agentos.llm.settings import LLMSettings, OfflineSettings, ProviderName, ProviderSettings
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE


def variables(values: Mapping[str, str]) -> Variables:
    return Variables({name: Variable(value) for name, value in values.items()})


@each_row(
    ("settings", "values", "choice"),
    [
        (
            LLMSettings(),
            {"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b", "OPENAI_API_KEY": "c", "ANTHROPIC_API_KEY": "d"},
            ProviderChoice("gemini", "gemini-2.0-flash", None, "a", "GEMINI_API_KEY"),
        ),
        (
            LLMSettings(),
            {"GOOGLE_API_KEY": "b", "OPENAI_API_KEY": "c", "GEMINI_MODEL": "gemini-9"},
            ProviderChoice("gemini", "gemini-9", None, "b", "GOOGLE_API_KEY"),
        ),
        (
            LLMSettings(model="gemini-8"),
            {"GEMINI_API_KEY": "a", "GEMINI_MODEL": "gemini-9"},
            ProviderChoice("gemini", "gemini-8", None, "a", "GEMINI_API_KEY"),
        ),
        (
            LLMSettings(model="gpt-9"),
            {"OPENAI_API_KEY": "c", "GEMINI_MODEL": "gemini-9"},
            ProviderChoice("openai", "gpt-9", None, "c", "OPENAI_API_KEY"),
        ),
        (
            LLMSettings(provider="openai", model="llama", base_url="http://127.0.0.1:11434/v1"),
            {"GEMINI_API_KEY": "a"},
            ProviderChoice("openai", "llama", "http://127.0.0.1:11434/v1", None, "OPENAI_API_KEY"),
        ),
        (
            LLMSettings(provider="openai", model="llama"),
            {"OPENAI_API_KEY": "c", "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"},
            ProviderChoice("openai", "llama", "http://127.0.0.1:8000/v1", "c", "OPENAI_API_KEY"),
        ),
        (
            LLMSettings(provider="gemini", base_url="https://proxy.example"),
            {"OPENAI_API_KEY": "c"},
            ProviderChoice("gemini", "gemini-2.0-flash", "https://proxy.example", None, "GEMINI_API_KEY"),
        ),
        (
            LLMSettings(),
            {"ANTHROPIC_API_KEY": "d"},
            ProviderChoice("anthropic", "claude-haiku-4-5", None, "d", "ANTHROPIC_API_KEY"),
        ),
        (
            LLMSettings(provider="anthropic", model="claude-9", base_url="http://127.0.0.1:8000"),
            {"GEMINI_API_KEY": "a"},
            ProviderChoice("anthropic", "claude-9", "http://127.0.0.1:8000", None, "ANTHROPIC_API_KEY"),
        ),
        (LLMSettings(provider="offline"), {"GEMINI_API_KEY": "a"}, ProviderChoice("offline", "offline")),
    ],
)
def test_the_configuration_decides_or_the_first_key(
    settings: LLMSettings, values: Mapping[str, str], choice: ProviderChoice
) -> None:
    assert choose_provider(settings, variables(values)) == choice


@pytest.mark.parametrize(
    ("of_all", "own", "places"), [(True, None, True), (True, False, False), (False, None, False), (False, True, True)]
)
@pytest.mark.parametrize("keys", [(), ("env:A",)])
def test_a_provider_has_prompt_caching_of_its_own_or_that_of_all(
    of_all: bool, own: bool | None, places: bool, keys: Sequence[str]
) -> None:
    one = ProviderSettings("anthropic", keys=keys, prompt_caching=own)
    found = choose_providers(
        LLMSettings(prompt_caching=of_all, providers={"one": one}),
        Variables({"ANTHROPIC_API_KEY": Variable("key")}),
        {"A": "sk-12345"},
    )

    [choice] = found["one"]
    assert isinstance(choice, ProviderChoice)
    assert choice.prompt_caching == places


def test_openai_has_a_model_of_its_own_but_other_servers_have_to_be_asked_for_one() -> None:
    key = variables({"OPENAI_API_KEY": "c"})

    genuine = choose_provider(LLMSettings(), key)
    other = choose_provider(LLMSettings(provider="openai", base_url="http://127.0.0.1:8000/v1"), key)

    assert isinstance(genuine, ProviderChoice)
    assert genuine.model
    assert isinstance(other, NoProvider)
    assert "model" in other.why


@each_row(
    ("settings", "values", "says"),
    [
        (
            LLMSettings(),
            {},
            ["GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", 'provider = "offline"'],
        ),
        (LLMSettings(provider="anthropic"), {"OPENAI_API_KEY": "c"}, ["ANTHROPIC_API_KEY"]),
        (LLMSettings(), {"GEMINI_MODEL": "gemini-9"}, ["GEMINI_API_KEY"]),
        (LLMSettings(provider="gemini"), {"OPENAI_API_KEY": "c"}, ["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
        (LLMSettings(provider="openai"), {"GEMINI_API_KEY": "a"}, ["OPENAI_API_KEY", "base_url"]),
        (LLMSettings(base_url="https://proxy.example"), {"GEMINI_API_KEY": "a"}, ["provider"]),
        *(
            (LLMSettings(provider="gemini", base_url=url), {"GEMINI_API_KEY": "a"}, ["base_url", "http://"])
            for url in ("proxy.example", "ftp://proxy.example", "http://", "http://[", "http://host:port", "")
        ),
    ],
)
async def test_without_a_provider_it_is_said_what_to_set(
    settings: LLMSettings, values: Mapping[str, str], says: list[str]
) -> None:
    choice = choose_provider(settings, variables(values))

    assert isinstance(choice, NoProvider)
    assert all(word in choice.why for word in says)
    with pytest.raises(Denied) as caught:
        await connect(choice, settings)
    assert str(caught.value) == choice.why


def test_keys_that_cannot_be_read_are_left_out_and_the_first_is_told_where_none_can() -> None:
    settings = LLMSettings(providers={"own": ProviderSettings("anthropic", keys=("env:A", "env:B", "env:C"))})

    [none] = choose_providers(settings, variables({}), {})["own"]
    [one] = choose_providers(settings, variables({}), {"C": "sk-12345"})["own"]

    assert isinstance(none, NoProvider)
    assert none.why == "[llm.providers.own] keys: the kernel's environment has no variable A"
    assert isinstance(one, ProviderChoice)
    assert (one.key, one.variable) == ("sk-12345", "C")


def test_a_cassette_answers_without_keys_and_packages() -> None:
    settings = LLMSettings(cassette="/a.jsonl")
    assert choose_providers(replace(settings, provider="anthropic"), variables({}), {}) == {
        "anthropic": [ProviderChoice("anthropic", "claude-haiku-4-5", None, "", "ANTHROPIC_API_KEY")]
    }
    several = {"a": ProviderSettings("openai", base_url="http://h/v1", keys=["env:NONE", "file:/none"])}
    [choice] = choose_providers(replace(settings, providers=several, model="m"), variables({}), {})["a"]
    assert isinstance(choice, ProviderChoice)

    [none] = choose_providers(settings, variables({}), {})["none"]
    assert isinstance(none, NoProvider)
    assert "[llm] cassette needs provider" in none.why
    recording = replace(settings, provider="gemini", cassette_mode="record")
    [none] = choose_providers(recording, variables({}), {})["none"]
    assert isinstance(none, NoProvider), "to record, a key is needed"


def test_a_choice_does_not_show_its_key() -> None:
    assert "canary" not in repr(choose_provider(LLMSettings(), variables({"GEMINI_API_KEY": "canary"})))


def test_choosing_costs_no_import() -> None:
    heavy = "google.genai", "openai", "anthropic", "httpx2", "agentos.llm.providers.offline"
    program = f"import sys, agentos.llm.providers.choose; print([name for name in {heavy} if name in sys.modules])"

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)

    assert run.stdout == "[]\n"


WITHOUT_SDKS = """
import sys
for provider in sys.argv[1:]:
    sys.modules[provider] = None  # as if it weren't installed
from agentos.llm.providers.choose import choose_provider
from agentos.llm.settings import LLMSettings
from agentos.llm.models.api_keys import Variables
for provider in sys.argv[1:]:
    print(choose_provider(LLMSettings(provider=provider, model="m", base_url="http://127.0.0.1:1/v1"), Variables({})))
"""


def test_a_missing_extra_is_named() -> None:
    program = [sys.executable, "-c", WITHOUT_SDKS, *EXTRAS]

    run = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE)

    for line, provider in zip(run.stdout.splitlines(), EXTRAS, strict=True):
        assert f"pip install {provider}" in line


HALFWAY = """
import errno, sys, trio
from agentos.llm.providers.choose import ProviderChoice, connect
from agentos.llm.providers.provider import Failing
from agentos.llm.settings import LLMSettings

full = True
def refuse(event, arguments):
    if full and event == "open" and "asyncio" in str(arguments[0]) and "transports" in str(arguments[0]):
        raise OSError(errno.EMFILE, "Too many open files")

async def main():
    global full
    for _ in range(2):
        for provider in sys.argv[1:]:
            try:
                await connect(ProviderChoice(provider, "m", "http://127.0.0.1:9/v1", "key", "KEY"), LLMSettings())
                print("loaded")
            except Failing as error:
                print(error)
        full = False

sys.addaudithook(refuse)
trio.run(main)
"""


def test_sdks_whose_import_failed_halfway_are_loaded_later() -> None:
    """Asyncio, which all import, can't be imported again while its submodules are still there."""
    sdks = ("gemini", "openai", "anthropic")
    program = [sys.executable, "-c", HALFWAY, *sdks]

    run = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE)

    assert run.stdout.splitlines() == [
        *(f"the SDK of {sdk} can't be loaded: OSError: [Errno 24] Too many open files" for sdk in sdks),
        *("loaded" for _ in sdks),
    ]


@pytest.mark.parametrize("provider", ["gemini", "openai", "anthropic"])
async def test_an_sdk_that_can_not_be_loaded_is_told_and_tried_anew(
    provider: ProviderName, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = ProviderChoice(provider, "m", "http://127.0.0.1:9/v1", "key", "KEY")
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, f"agentos.llm.providers.{provider}", None)
        with pytest.raises(Failing, match=f"the SDK of {provider} can't be loaded: ModuleNotFoundError"):
            await connect(choice, LLMSettings())

    await (await connect(choice, LLMSettings())).aclose()


async def test_offline_answers_without_anything() -> None:
    settings = LLMSettings(provider="offline")
    choice = choose_provider(settings, variables({}))

    provider = await connect(choice, settings)
    answer = await provider.answer(Question("offline", [Message("user", "hello")]), lambda delta: None)

    assert "hello" in answer.text


async def test_rules_that_cannot_be_used_are_told() -> None:
    settings = LLMSettings(provider="offline", offline=OfflineSettings(rules="/nonexistent/rules.toml"))

    with pytest.raises(Denied, match="/nonexistent/rules"):
        await connect(choose_provider(settings, variables({})), settings, read_offline_rules(settings))
