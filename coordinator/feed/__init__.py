"""The live feed: changes of runs as they happen, for `coordinator events`, `coordinator top` and the page."""
