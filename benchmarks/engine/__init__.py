"""The parts of ``bench_engine.py``: workload, contestants, timing and results, and the cases built from them."""
