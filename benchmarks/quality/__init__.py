"""How good the trained models are: AUC on public data, beside a plain PyTorch model and under colliding ids."""
