"""The operations of a client as plans, one module for each family. `Client` and `AsyncClient` share them."""
