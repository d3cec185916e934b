"""Views of runs, workers and namespaces: how they are built from replies, and how a terminal or JSON shows them."""
