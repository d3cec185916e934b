"""Python runs this before the program of every process that the lab starts: its directory is on their PYTHONPATH."""

from tests.faults.lab.observer import install

install()
