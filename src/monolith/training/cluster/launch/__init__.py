"""Launchers: start, watch and stop the processes of a job, on this machine or on a Ray cluster."""
