"""The way of a request from its handler to the model threads."""
