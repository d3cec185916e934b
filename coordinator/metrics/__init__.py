"""The metrics that coordinators and supervisors export, and their text form for Prometheus."""
