"""The doctor: examine the keys of a namespace, describe what is wrong, and repair it."""
