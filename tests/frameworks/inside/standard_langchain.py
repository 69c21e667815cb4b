"""The standard unit tests of langchain-tests for chat models; run by test_langchain.py in the frameworks' Python."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests, ToolsUnitTests

from agentos_sdk.adapters.langchain import AgentOSReadTool, ChatAgentOS


class TestChatAgentOS(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentOS

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "offline"}

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"AGENTOS_SOCKET": "/run/kernel.sock"}, {}, {"socket_path": "/run/kernel.sock"}


class TestReadTool(ToolsUnitTests):
    @property
    def tool_constructor(self) -> type[AgentOSReadTool]:
        return AgentOSReadTool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"path": "notes.md"}
