"""The parts of ``bench_data.py``: records, contestants, and the cases built from them."""
