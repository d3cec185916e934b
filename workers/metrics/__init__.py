"""The metrics of worker processes: cells in memory that a process shares with its supervisor."""
