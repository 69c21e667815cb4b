"""Adapters for agent frameworks: their tools as system calls, their models as THINK, their code in jails.

Each module imports the SDK and its own framework, nothing else. None of them decides anything: the kernel checks,
charges and audits each call as it does those of any other program.
"""
