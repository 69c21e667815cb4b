"""Specifications of supervisors and children: values, validated when they are created."""

import math
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

from attrs import field, frozen

from supervisors.backoff import Backoff, fastest, reachable
from supervisors.child import Startable
from supervisors.errors import SpecError
from supervisors.strategy import AutoShutdown, Restart, Strategy

Shutdown = float | Literal["brutal_kill", "infinity"]
ChildType = Literal["worker", "supervisor"]
ShutdownOrder = Literal["reverse", "together"]

WORKER_SHUTDOWN = 5.0  # seconds; OTP's default for workers (infinity for supervisors)


@frozen(kw_only=True)
class Terms:
    """The fields that a child spec and a template share.

    ``restart``: ``permanent`` is always restarted, ``transient`` after an abnormal end, ``temporary`` never, and its
    spec is forgotten. ``shutdown``: seconds from the stop request until it is killed, ``brutal_kill`` to kill at once,
    ``infinity``, or None for OTP's default: 5 s, for supervisors infinity. ``significant``: its end may end the
    supervisor, see ``auto_shutdown``. ``backoff``: None restarts at once, as OTP does. ``type`` is its type in
    ``count_children``; None derives it from ``start``.
    """

    restart: Restart = "permanent"
    shutdown: Shutdown | None = None
    significant: bool = False
    backoff: Backoff | None = None
    type: ChildType | None = None

    def check(self, name: str) -> None:
        """Raises SpecError ``invalid_restart_type``, ``invalid_shutdown`` or ``bad_combination``."""
        if self.restart not in get_args(Restart):
            wanted = ", ".join(get_args(Restart))
            raise SpecError(
                "invalid_restart_type", f"child {name!r}: restart is one of {wanted}, not {self.restart!r}", name
            )
        if self.significant and self.restart == "permanent":
            raise SpecError(
                "bad_combination", f"child {name!r}: a permanent child never ends, so it is not significant", name
            )
        if not valid_shutdown(self.shutdown):
            sentence = f"child {name!r}: shutdown is seconds, 'brutal_kill' or 'infinity', not {self.shutdown!r}"
            raise SpecError("invalid_shutdown", sentence, name)

    def kind(self, start: object) -> ChildType:
        """Worker or supervisor: ``type`` if set, else by the start."""
        return self.type or ("supervisor" if isinstance(start, SupervisorSpec) else "worker")

    def grace(self, kind: ChildType) -> Shutdown:
        """How to stop it, in seconds or OTP's words, including OTP's default."""
        if self.shutdown is not None:
            return self.shutdown
        return "infinity" if kind == "supervisor" else WORKER_SHUTDOWN


@frozen
class ChildSpec(Terms):
    """One child: its id, its start, and its terms (``Terms``)."""

    id: str = field(kw_only=False)
    start: "Startable | SupervisorSpec" = field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        self.check(self.id)


@frozen
class Template(Terms):
    """The spec shared by children of a simple_one_for_one supervisor; ``start`` makes one from the arguments."""

    start: "Callable[..., Startable | SupervisorSpec]" = field(kw_only=False)

    def __attrs_post_init__(self) -> None:
        self.check("template")

    def child(self, name: str, start: "Startable | SupervisorSpec") -> ChildSpec:
        """The spec of one child of this template."""
        return ChildSpec(
            name,
            start,
            restart=self.restart,
            shutdown=self.shutdown,
            significant=self.significant,
            backoff=self.backoff,
            type=self.type,
        )


def _children(given: "tuple[ChildSpec, ...] | list[ChildSpec]") -> tuple[ChildSpec, ...]:
    return tuple(given)


@frozen
class SupervisorSpec:
    """A supervisor and its initial children, in start order; can be the ``start`` of a child.

    It gives up, with reason ``shutdown``, after more than ``intensity`` restarts within ``period`` seconds. With
    simple_one_for_one ``template`` takes the place of ``children``.

    Beyond OTP, with an intensity of ``math.inf`` it never gives up; then each child that is restarted needs a backoff
    that grows to 1 s or more. With a ``shutdown_order`` of ``together``, for one_for_one only, its end and a change of
    its spec stop children at the same time, instead of one by one, newest first.

    Raises SpecError with OTP's name for the mistake as ``code``.
    """

    children: tuple[ChildSpec, ...] = field(default=(), converter=_children)
    strategy: Strategy = "one_for_one"
    intensity: float = 1
    period: float = 5.0
    auto_shutdown: AutoShutdown = "never"
    template: Template | None = None
    shutdown_order: ShutdownOrder = "reverse"

    def __attrs_post_init__(self) -> None:
        self._check_flags()
        seen = set[str]()
        for child in self.children:
            self.admit(child, child.id)
            if child.id in seen:
                raise SpecError("duplicate_child", f"two children have the id {child.id!r}", child.id)
            seen.add(child.id)
        if self.template is not None:
            self.admit(self.template, "template")

    @property
    def simple(self) -> bool:
        """Whether all children are dynamic, made from one template."""
        return self.strategy == "simple_one_for_one"

    def admit(self, child: Terms, name: str) -> None:
        """Raise SpecError if a child on these terms is not allowed under this supervisor."""
        if child.significant and self.auto_shutdown == "never":
            sentence = f"child {name!r}: significant means nothing while auto_shutdown is 'never'"
            raise SpecError("bad_combination", sentence, name)
        if child.restart == "temporary":
            return
        if self.intensity == math.inf:
            _check_pace(child.backoff, name)
        elif child.backoff is not None:
            self._check_reach(child.backoff, int(self.intensity), name)

    def _check_flags(self) -> None:
        _one_of("invalid_strategy", "strategy", self.strategy, get_args(Strategy))
        if self.intensity != math.inf and (not isinstance(self.intensity, int) or self.intensity < 0):
            expected = "a whole number from 0 up, or math.inf"
            raise SpecError("invalid_intensity", f"intensity is {expected}, not {self.intensity!r}")
        if not isinstance(self.period, int | float) or not 0 < self.period < math.inf:
            raise SpecError("invalid_period", f"period is more than 0 s, not {self.period!r}")
        _one_of("invalid_auto_shutdown", "auto_shutdown", self.auto_shutdown, get_args(AutoShutdown))
        _one_of("invalid_shutdown_order", "shutdown_order", self.shutdown_order, get_args(ShutdownOrder))
        if self.shutdown_order == "together" and self.strategy != "one_for_one":
            raise SpecError("bad_combination", "a shutdown_order of 'together' goes with one_for_one only")
        if self.simple and (self.template is None or self.children):
            raise SpecError("bad_combination", "simple_one_for_one takes a template, and no children")
        if self.template is not None and not self.simple:
            raise SpecError("bad_combination", "a template goes with simple_one_for_one only")

    def _check_reach(self, backoff: Backoff, intensity: int, name: str) -> None:
        # Otherwise a child that always fails is restarted for ever, and no supervisor above gets to know.
        least = fastest(backoff, intensity + 1)
        if backoff.max_failures is not None or least <= self.period:
            return
        possible = reachable(backoff, self.period, intensity)
        needed = math.ceil(least * 10) / 10 if least < 1e300 else least  # the sum of such delays may be infinite
        raise SpecError(
            "unreachable_intensity",
            f"child {name!r}: with its backoff {intensity + 1} restarts take {least:g} s at least, so intensity "
            f"{intensity} in {self.period:g} s is never exceeded and a child that always fails would be restarted "
            f"for ever; make period at least {needed:g} s, or intensity at most {possible}, "
            "or give the backoff a max_failures",
            name,
        )


def _check_pace(backoff: Backoff | None, name: str) -> None:
    # A child that always fails must not be restarted without a pause for ever.
    if backoff is not None and backoff.max >= 1 and (backoff.min >= 1 or (backoff.min > 0 and backoff.factor > 1)):
        return
    sentence = f"child {name!r}: restarts without a limit need a backoff that grows to a max of 1 s or more"
    raise SpecError("bad_combination", sentence, name)


T = TypeVar("T")


def _one_of(code: str, name: str, given: T, allowed: tuple[T, ...]) -> None:
    if given not in allowed:
        raise SpecError(code, f"{name} is one of {', '.join(map(str, allowed))}, not {given!r}")


def valid_shutdown(shutdown: Shutdown | None) -> bool:
    """Whether it is seconds from 0 up, one of OTP's two words, or None for the default."""
    if shutdown is None or isinstance(shutdown, str):
        return shutdown in (None, "brutal_kill", "infinity")
    return isinstance(shutdown, int | float) and 0 <= shutdown < math.inf
