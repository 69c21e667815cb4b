"""What is seen of attackers from outside."""

import subprocess
import sys

from agentos_attacks.watch import ProcessSampler
from tests.support.kernel import until

WAITS = "import sys; sys.stdin.read()"


def start(marker: str) -> subprocess.Popen[bytes]:
    """A process with the command line of an attacker, which ends with its input."""
    return subprocess.Popen([sys.executable, "-IS", "-c", WAITS, "probe.py", marker], stdin=subprocess.PIPE)


def test_attackers_are_those_that_began_after_the_watch() -> None:
    earlier = start("attacker-a-0.")
    with ProcessSampler(frozenset({"attacker-a-0.", "attacker-a-1."})) as sampler:
        later = [start("attacker-a-1.") for _ in range(2)]
        until(lambda: "attacker-a-1." in sampler.seen and sampler.seen["attacker-a-1."].processes == 2, "both are seen")

    assert sampler.seen.keys() == {"attacker-a-1."}
    assert sampler.seen["attacker-a-1."].memory > 1 << 20
    for process in (earlier, *later):
        process.communicate()
