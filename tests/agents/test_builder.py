"""The same mistake is told in the same words, whether it is in a SPAWN or in a configuration file."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.config.load import ConfigError, load
from tests.support.kernel import Kernel, shared
from tests.support.wire import SPAWN

SCRIPT = {"script": "a.py"}
UNPRICED = '[llm]\nprovider = "offline"\n'

MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    # what is said, its field in a SPAWN, its key in a file, the sentence
    ({}, "script", "script", "a script or a command is missing"),
    ({**SCRIPT, "command": ["true"]}, "script", "script", "a script or a command, but not both"),
    (
        {**SCRIPT, "env": {"A=B": ""}},
        "env.A=B",
        "env['A=B']",
        "expected the name of a variable, without '=', got 'A=B'",
    ),
    ({**SCRIPT, "env": {"": ""}}, "env.", "env['']", "expected the name of a variable, without '=', got ''"),
    (
        {**SCRIPT, "env": {"AGENTOS_X": ""}},
        "env.AGENTOS_X",
        "env.AGENTOS_X",
        "expected a name without AGENTOS_ in front, which is the kernel's, got 'AGENTOS_X'",
    ),
    (
        {**SCRIPT, "isolation": "strict", "sandboxed": False},
        "isolation",
        "isolation",
        "strict isolation needs a sandbox, and sandboxed is false: leave one of them out",
    ),
    (
        {**SCRIPT, "isolation": "none", "workspace": "tmp"},
        "workspace",
        "workspace",
        "only a jail has this, and isolation is none: leave it out",
    ),
    (
        {**SCRIPT, "isolation": "none", "runtime": "fast"},
        "runtime",
        "runtime",
        "only a jail has this, and isolation is none: leave it out",
    ),
    (
        {**SCRIPT, "isolation": "none", "network": "filtered"},
        "network",
        "network",
        "only a jail can be filtered, and isolation is none: give it a jail",
    ),
    ({"command": ["sh"], "runtime": "fast"}, "runtime", "runtime", "fast runs a script, and this is a command"),
    (
        {**SCRIPT, "workspace": "none"},
        "workspace",
        "workspace",
        "expected tmp, keep or a directory, got '{home}/none'",
    ),
    (
        {**SCRIPT, "workspace": "/etc"},
        "workspace",
        "workspace",
        "expected a directory that an agent may have, got '/etc': a directory of the system's",
    ),
    ({**SCRIPT, "code": "none"}, "code", "code", "expected a directory, got '{home}/none'"),
    (
        {**SCRIPT, "cwd": "/etc"},
        "cwd",
        "cwd",
        "expected a directory in /workspace, /agent, /tmp, which are all that a jail has, got '/etc'",
    ),
    ({"script": "none.py"}, "script", "script", "there is no file {home}/none.py"),
    (
        {"command": ["./none"]},
        "command",
        "command[0]",
        "expected a program that can be run, got '{home}/none': no such file",
    ),
    (
        {**SCRIPT, "python": "no-python"},
        "python",
        "python",
        "expected an interpreter, and there is no 'no-python' that can be run",
    ),
    ({**SCRIPT, "limits": {"disk": 0}}, "limits.disk", "limits.disk", "expected at least 1, got 0"),
    ({**SCRIPT, "limits": {"cpu_weight": 0}}, "limits.cpu_weight", "limits.cpu_weight", "expected 1 to 10000, got 0"),
    (
        {**SCRIPT, "limits": {"memory": "lots"}},
        "limits.memory",
        "limits.memory",
        "expected a size such as 256M, got 'lots'",
    ),
    ({**SCRIPT, "backoff": {"min": 5, "max": 1}}, "backoff", "backoff", "0 <= min <= max must hold, not 5.0 and 1.0"),
    (
        {**SCRIPT, "backoff": {"min": "soon"}},
        "backoff.min",
        "backoff.min",
        "expected a duration such as 5s, got 'soon'",
    ),
    (
        {**SCRIPT, "llm": {"budget": [{"tokens": 1, "per": "1h"}, {"tokens": 2, "per": "1h"}]}},
        "llm.budget",
        "llm.budget[1].tokens",
        "there is a budget of tokens per 3600 s already",
    ),
    (
        {**SCRIPT, "llm": {"budget": [{"per": "1h"}]}},
        "llm.budget[0]",
        "llm.budget[0]",
        "expected at least one of tokens, calls and money",
    ),
    (
        {**SCRIPT, "llm": {"budget": [{"money": 1, "per": "1h"}]}},
        "llm.budget",
        "llm.budget",
        "a budget of money needs the model's price, and there is no [llm.prices]",
    ),
    (
        {**SCRIPT, "llm": {"weight": 0}},
        "llm.weight",
        "llm.weight",
        "expected a weight from 0.01 to 100, got 0",
    ),
]


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(UNPRICED) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def _script(kernel: Kernel) -> None:
    (kernel.place / "a.py").write_text("")


@pytest.mark.parametrize(("given", "field", "key", "sentence"), MISTAKES, ids=[json.dumps(row[0]) for row in MISTAKES])
def test_a_mistake_is_told_in_the_same_words(
    kernel: Kernel, given: dict[str, Any], field: str, key: str, sentence: str
) -> None:
    sentence = sentence.format(home=kernel.place)
    file = kernel.place / "wrong.toml"
    file.write_text(f"[[supervisor.children]]\n{toml({'name': 'w', **given})}\n{UNPRICED}")

    with kernel.connect() as wire:
        reply = wire.call(SPAWN, {"name": "w", **given})
    try:
        mistakes = load(file).faults  # what this host lacks doesn't refuse the file
    except ConfigError as error:
        mistakes = error.mistakes

    assert reply["error"] == f"{field}: {sentence}"
    [mistake] = mistakes
    assert (mistake.path, mistake.message) == (f"supervisor.children[0].{key}", sentence)


def test_bounds_of_restarts_are_those_of_a_supervisors_intensity(kernel: Kernel) -> None:
    file = kernel.place / "wrong.toml"
    file.write_text('[supervisor]\nintensity = 1001\nperiod = "0s"')

    with pytest.raises(ConfigError) as told, kernel.connect() as wire:
        many = wire.call(SPAWN, {"name": "w", "command": ["true"], "max_restarts": 1001})
        never = wire.call(SPAWN, {"name": "w", "command": ["true"], "restart_window": 0})
        load(file)

    intensity, period = (mistake.message for mistake in told.value.mistakes)
    assert many["error"] == f"max_restarts: {intensity}"
    assert (never["error"].partition(", got")[0], period) == (
        f"restart_window: {period.partition(', got')[0]}",
        "expected a duration above 0s, got '0s'",
    )


def test_a_backoff_beyond_the_intensity_is_told_in_the_same_words(kernel: Kernel) -> None:
    backoff = {"min": 60, "max": 60, "jitter": 0}
    file = kernel.place / "wrong.toml"
    child = toml({"name": "w", **SCRIPT, "backoff": backoff, "max_restarts": 3})
    file.write_text(f"[[supervisor.children]]\n{child}")

    with kernel.connect() as wire, pytest.raises(ConfigError) as told:
        reply = wire.call(SPAWN, {"name": "w", **SCRIPT, "backoff": backoff, "restart": "permanent"})
        load(file)

    [mistake] = told.value.mistakes
    assert reply["error"] == f"backoff: {mistake.message}"
    assert mistake.message.startswith("with its backoff 4 restarts take")


def toml(table: dict[str, Any]) -> str:
    """The table's keys and values, one a line."""
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
