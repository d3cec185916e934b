"""Make agents of the OpenAI Agents SDK durable: each model call and each tool call is a phase of the current run.

    @runs.handler
    async def research(run: AsyncRun, question: str) -> str:
        return (await DurableRunner.run(agent, question)).final_output

The extra `openai-agents` installs the SDK.
"""

from workers.integrations.openai_agents.redis_session import RedisSession
from workers.integrations.openai_agents.runner import DurableRunner
from workers.integrations.openai_agents.session import RunSession

__all__ = ["DurableRunner", "RedisSession", "RunSession"]
