"""The benchmark of hand-overs: how long a run stands still when its worker process ends."""
