"""Parts of a model on other servers: addresses, calls, rows and the dense part."""
