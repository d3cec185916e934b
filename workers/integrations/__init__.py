"""Adapters that make agents of other frameworks durable; each is imported only when used."""
