"""Training beside plain PyTorch: samples per second, what a step costs besides its math, checkpoints, memory."""
