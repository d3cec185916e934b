"""The commands about a whole namespace: create and check it, watch it, pause it, limit it, schedule its runs."""
