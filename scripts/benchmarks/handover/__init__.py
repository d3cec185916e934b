"""The handover benchmark: how long a run pauses when its worker process ends."""
