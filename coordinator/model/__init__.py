"""The data types of the product and its decisions without I/O: runs, schedules, retries, deadlines, outcomes."""
