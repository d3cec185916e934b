"""What the watcher demands of children, budgets, groups and limits at every step. One module for each family."""
