"""The nouns of the product and its pure decisions: runs, schedules, retries, deadlines, outcomes. No I/O."""
