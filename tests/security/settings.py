"""Where attacks take place: on this host as whoever runs the tests, and in guests with cgroup v2.

``python -m tests.security.settings`` attacks a kernel here and prints the table; with ``--json`` what tests read. With
``--bare`` it attacks without a kernel, to show that the attacker gets through: in a guest, which forgets everything.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from attrs import frozen

from agentos.sandbox.report.doctor import kernel_cgroup
from agentos_attacks import harness, kernel, verdicts
from agentos_attacks.canaries import Canaries
from agentos_attacks.harness import Attacker, AttackResult, Exit
from agentos_attacks.verdicts import Verdict
from tests.support.wire import PATIENCE
from tests.tools import cgroup2_vm


def run(attackers: Sequence[Attacker], canaries: Canaries) -> AttackResult:
    """Agents of a kernel's."""
    with kernel_cgroup() as group, kernel.run_kernel(canaries, group, PATIENCE) as client:
        return kernel.run_attackers(client, attackers)


def run_bare(attackers: Sequence[Attacker], canaries: Canaries) -> AttackResult:
    """No kernel at all, for the shot that doesn't use anything up: only where there's nothing to lose."""
    first, *others = attackers
    done = subprocess.run(
        [sys.executable, "-I", str(harness.ATTACKER / harness.PROGRAM), first.task],
        env=canaries.environment,
        cwd=canaries.outside / "workspace",
        stdin=canaries.terminal,
        capture_output=True,
        text=True,
        pass_fds=canaries.files,
        start_new_session=True,
        timeout=240,
        check=False,
    )
    return AttackResult([Exit(done.stdout, done.stderr), *(Exit("", "", start_error="not tried") for _ in others)], {})


def here() -> list[Verdict]:
    """As whoever runs this, on the host that this runs on."""
    return harness.attack(run)


def dump_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as JSON, for another process."""
    return json.dumps([[verdict.check, verdict.outcome, verdict.detail] for verdict in verdicts])


def load_verdicts(text: str) -> list[Verdict]:
    """Parse the result of :func:`dump_verdicts`."""
    return [Verdict(*row) for row in json.loads(text)]


@frozen
class Guest:
    """A Linux of its own with cgroup v2: one boot."""

    user: bool = False
    bare: bool = False

    def attacked(self) -> list[Verdict]:
        """On the first CPU that the calling thread may use."""
        env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        argv = [sys.executable, "-m", "tests.security.settings", "--json", *(["--bare"] if self.bare else [])]
        ended = cgroup2_vm.run(cgroup2_vm.Job(argv, user=self.user, env=env))
        if ended.code:
            raise RuntimeError(f"the guest: {ended.out} {ended.err}")
        return load_verdicts(ended.out)


if __name__ == "__main__":
    found = harness.attack(run_bare) if "--bare" in sys.argv else here()
    print(dump_verdicts(found) if "--json" in sys.argv else verdicts.format_table(found))
