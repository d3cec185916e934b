"""The coordinator process and its periodic services."""
