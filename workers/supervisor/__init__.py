"""The supervisor of one host: keep worker processes running, replace them, and roll them."""
