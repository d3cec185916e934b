"""The operations of a run that need its worker: waits, children, enqueues, effects, budgets and limits."""
