"""The same four agents on LangGraph, AutoGen, supervisord and AgentOS, measured (``make compare``)."""
