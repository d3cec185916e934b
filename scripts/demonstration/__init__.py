"""The program behind scripts/demo: agent runs on real processes, which are killed on a schedule, and a count of the results."""
