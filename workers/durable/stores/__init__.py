"""Stores of records: in memory, and on Redis or Valkey."""
