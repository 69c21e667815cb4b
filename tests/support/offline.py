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
def thinking(per_output: str = "2ms") -> Iterator[Kernel]:
    """A kernel that answers as the rules above say, else with an echo; ``per_output`` is how long a token takes."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as rules:
        rules.write(RULES)
        rules.flush()
        Path(rules.name).chmod(0o644)
        offline = f'rules = "{rules.name}"\nper_output = "{per_output}"'
        with running(f'[llm]\nprovider = "offline"\n\n[llm.offline]\n{offline}\n') as kernel:
            yield kernel
