"""Make graphs of LangGraph durable: checkpointers on plain Redis or Valkey. Install the extra `langgraph`.

See docs/guides/langgraph.md.
"""

from workers.integrations.langgraph.redis_saver import RedisSaver

__all__ = ["RedisSaver"]
