"""Read many runs: lists, pages, scans, and the overview of a namespace."""
