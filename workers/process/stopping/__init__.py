"""Stop attempts, and shut down the whole worker without losing a run."""
