"""Make graphs of LangGraph durable: checkpointers on plain Redis or Valkey. Install the extra `langgraph`.

See docs/guides/langgraph.md.
"""

from workers.integrations.langgraph.redis_saver import RedisSaver
from workers.integrations.langgraph.run_graph import run_graph
from workers.integrations.langgraph.run_saver import RunSaver

__all__ = ["RedisSaver", "RunSaver", "run_graph"]
