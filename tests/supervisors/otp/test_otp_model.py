"""A supervisor driven at random, against OTP in a few lines."""

from collections.abc import Awaitable, Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisors import ChildSpec, Exit, NoProc, Refused, StartFailed, SupervisorSpec
from tests.supervisors.otp.otp_model import Model, Row
from tests.supervisors.otp.trio_in_steps import TrioInSteps
from tests.supervisors.puppets import Owner, Puppet
from tests.support.runs.rounds import rounds

NAMES = st.sampled_from("abcdef")
KINDS = st.sampled_from(["permanent", "transient", "temporary"])
POLICIES = st.sampled_from(["never", "any_significant", "all_significant"])
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])


class AgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trio = TrioInSteps()

    @initialize(
        strategy=STRATEGIES,
        intensity=st.integers(0, 6),
        policy=POLICIES,
        kinds=st.lists(st.tuples(KINDS, st.booleans()), max_size=4),
    )
    def begin(self, strategy: str, intensity: int, policy: str, kinds: list[tuple[str, bool]]) -> None:
        self.model = Model(strategy, intensity, policy)
        self.log: list[str] = []
        self.puppets = {name: Puppet(name, self.log) for name in "abcdef"}
        self.model.rows = [
            self.row(name, kind, significant) for name, (kind, significant) in zip("abcdef", kinds, strict=False)
        ]
        for row in self.model.rows:
            self.model.start(row)
        children = [self.spec(row) for row in self.model.rows]
        self.owner = Owner(
            SupervisorSpec(children, strategy, intensity, 1e6, policy)  # type: ignore[arg-type]
        )
        self.trio.call(lambda: self.trio.nursery.start(self.owner.run))

    def row(self, name: str, kind: str, significant: bool) -> Row:
        return Row(name, kind, significant and kind != "permanent" and self.model.policy != "never")

    def spec(self, row: Row) -> ChildSpec:
        return ChildSpec(row.id, self.puppets[row.id], restart=row.restart, significant=row.significant)  # type: ignore[arg-type]

    def fail_next(self, name: str, times: int) -> None:
        self.model.failing[name] = times
        self.puppets[name].plan = ["fail"] * times

    def answer(self, call: Callable[[], Awaitable[object]]) -> str:
        try:
            self.trio.call(call)
        except (Refused, StartFailed, NoProc) as refusal:
            return refusal.code
        return "ok"

    def refusal(self, row: Row | None) -> str | None:
        """What every call about a child says first."""
        return "noproc" if self.model.gone else "not_found" if row is None else None

    def states(self) -> list[tuple[str, str]]:
        async def look() -> list[tuple[str, str]]:
            return [(info.id, info.state) for info in reversed(self.owner.supervisor.children())]

        return self.trio.call(look)

    @precondition(lambda self: self.model.gone)
    @rule(strategy=STRATEGIES, intensity=st.integers(0, 6), policy=POLICIES)
    def begin_again(self, strategy: str, intensity: int, policy: str) -> None:
        self.begin(strategy, intensity, policy, [("permanent", False), ("transient", True), ("temporary", True)])

    @rule(name=NAMES, reason=st.sampled_from(["crash", "normal", "shutdown"]), failing=st.integers(0, 2), who=NAMES)
    def a_child_ends(self, name: str, reason: str, failing: int, who: str) -> None:
        row = self.model.row(name)
        if self.model.gone or row is None or not row.running:
            return
        self.fail_next(who, failing)
        self.model.ended(row, reason)
        self.trio.call(lambda: self.puppets[name].ends(Exit(reason)))  # type: ignore[arg-type]

    @rule(name=NAMES, kind=KINDS, significant=st.booleans(), fails=st.booleans())
    def start_child(self, name: str, kind: str, significant: bool, fails: bool) -> None:
        known, row = self.model.row(name), self.row(name, kind, significant)
        expected = "already_present" if known is not None else "ok"
        if self.model.gone:
            expected = "noproc"
        elif known is not None and known.running:
            expected = "already_started"
        elif known is None:
            self.fail_next(name, int(fails))
            if self.model.start(row):
                self.model.rows.append(row)
            else:
                expected = "start_failed"

        assert self.answer(lambda: self.owner.supervisor.start_child(self.spec(row))) == expected

    @rule(name=NAMES, fails=st.booleans())
    def restart_child(self, name: str, fails: bool) -> None:
        row = self.model.row(name)
        expected = self.refusal(row) or "running"
        if expected == "running" and row is not None and not row.running:
            self.fail_next(name, int(fails))
            expected = "ok" if self.model.start(row) else "start_failed"

        assert self.answer(lambda: self.owner.supervisor.restart_child(name)) == expected

    @rule(name=NAMES)
    def terminate_child(self, name: str) -> None:
        row = self.model.row(name)
        expected = self.refusal(row) or "ok"
        if expected == "ok" and row is not None:
            self.model.stop([row])

        assert self.answer(lambda: self.owner.supervisor.terminate_child(name)) == expected

    @rule(name=NAMES)
    def delete_child(self, name: str) -> None:
        row = self.model.row(name)
        expected = self.refusal(row) or ("running" if row is not None and row.running else "ok")
        if expected == "ok" and row is not None:
            self.model.rows.remove(row)

        assert self.answer(lambda: self.owner.supervisor.delete_child(name)) == expected

    @invariant()
    def the_same_has_happened(self) -> None:
        if not hasattr(self, "owner"):
            return
        shown = self.states()
        rows = [(row.id, "running" if row.running else "stopped") for row in self.model.rows]

        assert self.log == self.model.log
        assert (self.owner.supervisor.exit is not None) == self.model.gone
        assert self.model.gone or shown == rows

    def teardown(self) -> None:
        self.trio.close()


AgainstTheModel.TestCase.settings = settings(max_examples=rounds(60), stateful_step_count=30)
test_whatever_happens_to_it_the_supervisor_does_as_the_model = AgainstTheModel.TestCase
