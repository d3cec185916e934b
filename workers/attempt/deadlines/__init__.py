"""Watch the deadlines of attempts, and ask the escalators of the user."""
