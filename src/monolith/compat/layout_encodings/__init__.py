"""The offset encodings of sharded sparse ids, and the messages that describe layouts, as the original has them."""
