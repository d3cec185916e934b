"""Adapters that make agents of other frameworks durable. Each adapter is imported only when it is used."""
