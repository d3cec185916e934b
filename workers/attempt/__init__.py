"""One attempt at a run: load, execute, save checkpoints, enforce deadlines, and record the outcome."""
