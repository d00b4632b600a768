"""The stages of a run, one file each, with the driver and the worker of a stage side by side."""
