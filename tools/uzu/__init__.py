"""The `uzu` command: fetch models, lay out a run directory, supervise tritonserver and the gateway."""

__version__ = "0.1.0"
