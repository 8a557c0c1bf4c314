"""Models and versions in service: loading, swapping, unloading."""
