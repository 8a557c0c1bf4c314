"""The parts of ``bench_nn.py``: sizes, bars, and the cases of the torch modules."""
