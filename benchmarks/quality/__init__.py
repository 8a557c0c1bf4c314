"""How good the trained models are: AUC on public data, beside plain PyTorch, with colliding ids, and as a job."""
