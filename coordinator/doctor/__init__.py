"""The doctor: examine the keys of a namespace, describe their faults, and repair them."""
