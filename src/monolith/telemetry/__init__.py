"""Telemetry: names, histograms, a registry, the text form and the page that Prometheus fetches.

One metric system for every process: trainers, parameter servers, model servers. Needs no package beyond the standard
library.
"""
