"""Records: how they are framed and compressed, which messages they are, and tools that read, make and show them."""
