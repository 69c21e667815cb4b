"""Programs that know nothing of AgentOS, behind the filter."""
