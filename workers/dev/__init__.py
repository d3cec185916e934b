"""The tool behind `workers dev`: a local server, a coordinator and workers that reload changed code."""
