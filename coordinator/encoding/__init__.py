"""Encode plain data as msgpack, and compress or encrypt stored values."""
