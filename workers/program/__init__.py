"""How a worker process starts: import the handlers, find their version, and run the event loop."""
