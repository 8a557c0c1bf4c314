"""Records, features and datasets: from bytes in files and streams to batches of tensors."""
