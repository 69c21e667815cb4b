"""Why a program could not be started, as an error for the caller: one table for jails and for commands."""

import contextlib
import errno
from pathlib import Path

import trio

from agentos.agents.spec import AgentSpec, BadField, HostFault
from agentos.agents.workspaces.workspace import BadWorkspace
from agentos.images.errors import BadStore, NoImage
from agentos.sandbox.cgroups.surrounding import find_full_group
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.errors import SandboxError, StepFailed, ZygoteDied
from agentos.sandbox.host_id_registry import HostIdError
from agentos.sandbox.policy import BadPolicy
from agentos.sandbox.report import remedies
from agentos_sdk.errors import BadRequest, Busy, CallError, IsolationUnavailable, NotFound, QuotaExceeded, Unavailable

from . import layout
from .interpreters import NoInterpreter
from .isolation_report import NotIsolated
from .jail import JailParts

PROGRAM_STEPS = ("Execute", "RunScript")  # the steps that fail if the program itself can't be run
SOURCE_STEPS = ("OpenSource", "DetachSource", "DetachLayer", "Bind")  # a file that the jail is to have
FILLING_STEPS = ("MakeDirectory", "WriteFile", "Link", "Bind", "Protect")

START_ERRORS: dict[type[Exception], type[CallError]] = {
    NotIsolated: IsolationUnavailable,
    CgroupError: IsolationUnavailable,
    HostIdError: IsolationUnavailable,
    ZygoteDied: Busy,
    SandboxError: Unavailable,
    BadPolicy: BadRequest,
    NoInterpreter: BadRequest,
    BadField: BadRequest,
    BadWorkspace: Unavailable,
    NoImage: NotFound,
    BadStore: Unavailable,
    OSError: Unavailable,
    RuntimeError: Busy,  # no thread can be started
}
"""What the caller gets for an error of a start; a :class:`StepFailed` depends on its step. The first match counts."""


NO_DESCRIPTORS_LEFT = {
    errno.EMFILE: ": the kernel may have no more open: raise LimitNOFILE of its unit, or `ulimit -n`, and restart it",
    errno.ENFILE: ": the host may have no more open: raise the sysctl fs.file-max",
}


class JailError(Exception):
    """The program could not be started. ``error`` is the type of the error that the caller gets."""

    def __init__(self, text: str, error: type[CallError] = Unavailable) -> None:
        super().__init__(text)
        self.error = error


def explain(error: Exception, spec: AgentSpec) -> JailError:
    """The error for the caller for one of ``START_ERRORS``."""
    if isinstance(error, StepFailed):
        return explain_step(error, spec)
    text = describe(error, "the sandbox")
    if isinstance(error, HostFault):
        return JailError(text, error.error)
    if _lacks_descriptors(error):
        return JailError(text)
    if isinstance(error, RuntimeError):
        text = f"the kernel can't start an agent now: {error}"
    return JailError(text, next(code for kind, code in START_ERRORS.items() if isinstance(error, kind)))


def describe(error: Exception, what: str) -> str:
    """The text for an error of a start; ``what`` it concerns where it names no file."""
    text = f"{error.filename or what}: {error.strerror}" if isinstance(error, OSError) else str(error)
    return text + _lacks_descriptors(error)


def _lacks_descriptors(error: Exception) -> str:
    """What to do where the kernel can open no more; empty otherwise."""
    cause = error.__cause__ if isinstance(error, CgroupError) else error
    return NO_DESCRIPTORS_LEFT.get(cause.errno or 0, "") if isinstance(cause, OSError) else ""


def too_many_processes() -> JailError:
    """The error where the control group of an agent has no room for the program."""
    return JailError("its limit max_pids is reached, or that of an agent which it descends from", QuotaExceeded)


def explain_full_group() -> JailError:
    """The error where some control group has no room for the program: the kernel's own, or that of an agent. Blocks."""
    full = find_full_group(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if full is None:
        return too_many_processes()
    where, most = full
    fix = "raise TasksMax of its unit, or that file"
    return JailError(f"the kernel's own control group may have {most} processes ({where}): {fix}", Unavailable)


def explain_step(failure: StepFailed, spec: AgentSpec) -> JailError:
    """The error for the caller when a step of the sandbox failed."""
    if failure.errno == errno.EAGAIN and failure.step.startswith(("Clone", *PROGRAM_STEPS)):
        return explain_full_group()
    if failure.step.startswith(PROGRAM_STEPS):
        return explain_program(failure, spec.jailed, spec.image)
    if failure.step.startswith(SOURCE_STEPS):
        return JailError(failure.text)
    if failure.step == "Clone" and failure.text.partition(":")[0].endswith(("newuidmap", "newgidmap")):
        fix = "a range of 65,536 in /etc/subuid and /etc/subgid must be this user's, and no_new_privs be off"
        return JailError(f"user: {failure.text}: {fix}", IsolationUnavailable)
    if failure.step.startswith("MountImage"):
        return JailError(
            f"image {spec.image}: it can't be the root of a jail here: {failure.text}", IsolationUnavailable
        )
    if failure.step.startswith("MountOverlay"):  # a trial has shown that this host has overlays
        what = f"workspace {spec.workspace}: it can't be the lower layer of an overlay: {failure.text}"
        return JailError(f'{what}: say mode = "direct" (`agentos task`: --in-place)', IsolationUnavailable)
    knob = remedies.find_remedy(failure.step, failure.text, failure.errno, remedies.read_surroundings())
    text = f"isolation {spec.isolation} can't be had here: {failure}" + (f": {knob}" if knob else "")
    return JailError(text, IsolationUnavailable)


def explain_program(failure: StepFailed, jailed: bool, image: str | None = None) -> JailError:
    """The error for the caller when the program itself can't be run."""
    name, where = failure.text.rpartition(": ")[0], "the jail's PATH" if jailed else "PATH"
    if image is not None:
        where = f"the PATH of its image {image}"
    if failure.errno == errno.ENOENT and "/" not in name:
        return JailError(f"{name}: not found in {where}", NotFound)
    inside = " (in its jail, which has nothing of the host's but the system and the agent's own)" if jailed else ""
    if image is not None:
        inside = f" (in its image {image}, which has nothing of the host's)"
    return JailError(f"{failure.text}{inside}", NotFound if failure.errno == errno.ENOENT else Unavailable)


def low_limit(failure: StepFailed) -> str | None:
    """The limit that made a step fail, or None."""
    if failure.errno == errno.EMFILE:
        return "open_files"
    if failure.errno == errno.ENOMEM or "MemoryError" in failure.text:
        return "memory"
    return "inodes" if failure.errno == errno.ENOSPC and failure.step.startswith(FILLING_STEPS) else None


async def explain_low_limit(parts: JailParts | None, error: Exception) -> JailError | None:
    """The limit that is too low for the program to start, if that is why the start failed."""
    if parts is None or not parts.agent.spec.jailed or not isinstance(error, SandboxError | OSError):
        return None
    group, limits, field = parts.group, layout.limits(parts.agent.spec), None
    if isinstance(error, StepFailed):
        field = low_limit(error)
    elif group is not None and not isinstance(error, ZygoteDied):
        with trio.CancelScope(shield=True), contextlib.suppress(CgroupError, RuntimeError):  # no thread can be started
            counted = await trio.to_thread.run_sync(group.evidence)
            field = "memory" if counted.out_of_memory or counted.killed_above else None
    if field is None:
        return None
    return JailError(f"limits.{field}: {getattr(limits, field)} is too little to begin with ({error})", BadRequest)
