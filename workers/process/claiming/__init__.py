"""Claim runs: how many the slots allow, from which partition, and which of them start."""
