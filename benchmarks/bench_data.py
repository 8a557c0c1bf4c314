"""Measures records and datasets beside their peers: ``monolith bench data [--case C] [--quick]``.

Prints one JSON object per case on standard output. Whoever is compared has one core, peers in other processes too;
only the pipeline, whose stages overlap, has all. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import sys

from measure.program import Benchmark, Group

GROUPS: dict[str, Group] = {
    "example_batch": Group("parsing.example_batch_cases", ("example_batch_protobuf",), cores=1),
    "instance": Group("parsing.instance_cases", ("instance_protobuf", "instance_named_protobuf"), cores=1),
    "tensorflow": Group("tensorflow_cases.tensorflow_cases", ("tf_example_tensorflow",), cores=1),
    "tf_example": Group("parsing.tf_example_cases", ("tf_example_protobuf",), cores=1),
    "pipeline": Group("pipeline.pipeline_cases", ("pipeline_share",)),
    "allocation": Group("allocation.allocation_cases", ("allocation",), cores=1),
    "rows": Group("rows.row_cases", ("transforms", "shuffle", "parquet_arrow"), cores=1),
    "text": Group("text_files.text_cases", ("csv_arrow", "jsonl_arrow"), cores=1),
}


def main() -> int:
    # One thread of NumPy and of whatever else counts its cores at the start.
    return Benchmark("data", __file__, __doc__, GROUPS, {"OMP_NUM_THREADS": "1"}).main()


if __name__ == "__main__":
    sys.exit(main())
