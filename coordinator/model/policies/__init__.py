"""The rules that users set for runs: retries, deadlines, budgets, group limits, rates and schedules."""
