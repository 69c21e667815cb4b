"""All checks, in the order of the table: those that other tools are compared by, and further ones of our own."""

from . import channels, exhaustion, files, pid1, processes, surface, walls
from .frame import Check, Said, Targets, without


def _no_deputy(_: Targets) -> Said:
    return without("the kernel has no call that opens files for an agent")


DEPUTY = (
    Check("deputy.path_tricks", _no_deputy, "have the kernel read a path that tricks it", "openat2(RESOLVE_BENEATH)"),
    Check("deputy.symlink_race", _no_deputy, "swap a directory for a link meanwhile", "openat2(RESOLVE_BENEATH)"),
)
_ROOMS = (files, processes, pid1, walls, channels, exhaustion, surface)

COMPARED: tuple[Check, ...] = (*(check for room in _ROOMS for check in room.CHECKS), *DEPUTY)
FURTHER: tuple[Check, ...] = tuple(check for room in _ROOMS for check in room.FURTHER)
BY_NAME = {check.name: check for check in (*COMPARED, *FURTHER)}
