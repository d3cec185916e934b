"""Send the events that attempts emit."""
