"""Views of runs, workers and namespaces, and how a terminal shows them."""
