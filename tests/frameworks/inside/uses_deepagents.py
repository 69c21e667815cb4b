"""An agent of LangChain's deepagents, with its shell, as its users write it: it knows nothing of AgentOS."""

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend

agent = create_deep_agent(
    model="anthropic:scripted", backend=LocalShellBackend(root_dir="/workspace", inherit_env=True)
)
asked = {"messages": [{"role": "user", "content": "Make eight files"}]}
print(agent.invoke(asked, {"recursion_limit": 100})["messages"][-1].text, flush=True)
