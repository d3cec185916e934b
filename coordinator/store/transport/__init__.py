"""Send requests to the servers and bring back the replies.

From the outside in:

- `wire` is the entrance: import `Wire`, `AsyncWire`, `Bell`, `AsyncBell`, `drive` and `drive_async` from there.
- `drivers` run a plan over a wire. `sync_wire` serves threads, `async_wire` serves one event loop.
- `lane` chooses the node for each request. `packets` merges requests into few commands. `trip` is one pipelined round trip to one
  node. `answers` keeps track of requests that must be sent again.
- `bell` and `async_bell` wait until a Redis list has a token.
- `key_watch` yields the names of keys that change, as the server reports them.
- `topology/` knows which node serves a partition: a single server, a Sentinel group or a Redis Cluster.
- `connections/` opens connections with redis-py and exchanges bytes on them.
- `error_mapping` turns errors of redis-py into errors of this package.
- `observer` lets a test program watch every exchange.
"""
