"""Agents in jails."""
