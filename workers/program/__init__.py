"""The program of a worker process: import the handlers, find out the version of their code, and run the event loop."""
