"""All checks in the order of the table: those used to compare tools, and further ones."""

from . import channels, deputy, exhaustion, files, memory, pid1, processes, surface, walls, written
from .frame import Check

_MODULES = (files, processes, pid1, walls, channels, exhaustion, memory, surface, written)

COMPARED: tuple[Check, ...] = (*(check for module in _MODULES for check in module.CHECKS), *deputy.CHECKS)
FURTHER: tuple[Check, ...] = tuple(check for module in _MODULES for check in module.FURTHER)
BY_NAME = {check.name: check for check in (*COMPARED, *FURTHER)}
