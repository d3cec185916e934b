"""The HTTP API, served by uvicorn on a real server, with real workers."""
