"""Kernels whose model is the offline provider, which answers as rules say."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.kernel import Kernel, running

ENDLESS = 100_000  # words; at two milliseconds each nobody waits for the end
LONG = 5000  # words

RULES = rf"""
[[rule]]
match = '^endless$'
reply = '{"word " * ENDLESS}'

[[rule]]
match = '^long$'
reply = '{"word " * LONG}'

[[rule]]
match = '^seven$'
reply = 'one two three four five six seven'

[[rule]]
match = '^control$'
reply = "red \u001b[31mbell \u0007\nnext line\n"

[[rule]]
match = '^breaks off$'
reply = 'half a '
fail = "rejected"

[[rule]]
match = '^(\d+) times (\d+)$'
tool_calls = [{{ name = "multiply", arguments = {{ a = '\1', b = '\2' }} }}]

[[rule]]
tool = "multiply"
match = '.*'
reply = 'It is \g<0>.'

[[rule]]
match = '^settings$'
system = 'pirate'
model = 'parrot'
reply = 'Arr.'
"""


@contextlib.contextmanager
def answering(rules: str, llm: str = "", offline: str = "") -> Iterator[Kernel]:
    """A kernel that answers as ``rules`` say, else with an echo; ``llm`` and ``offline``: lines of those tables."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(rules)
        file.flush()
        Path(file.name).chmod(0o644)
        toml = f'[llm]\nprovider = "offline"\n{llm}\n[llm.offline]\nrules = "{file.name}"\n{offline}\n'
        with running(toml) as kernel:
            yield kernel


def thinking(per_output: str = "2ms") -> contextlib.AbstractContextManager[Kernel]:
    """A kernel that answers as the rules above say, else with an echo; ``per_output`` is how long a token takes."""
    return answering(RULES, offline=f'per_output = "{per_output}"')
