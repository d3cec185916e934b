"""HTTP endpoints of a coordinator or a fleet: health checks (`--health`) and metrics (`--metrics`)."""
