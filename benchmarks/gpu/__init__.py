"""The parts of ``bench_gpu.py``: sizes, bars, timing on a GPU, and the cases built from them."""
