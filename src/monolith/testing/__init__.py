"""Public fakes for the seams of Monolith; each passes the same conformance suite as the real thing.

For tests of users' code as well as ours. Nothing outside tests and demonstrations may depend on it.
"""

from monolith.testing.clock import FakeClock
from monolith.testing.eventually import eventually
from monolith.testing.reference_store import ReferenceStore
from monolith.testing.reference_table import ReferenceTable

__all__ = ["FakeClock", "eventually", "ReferenceStore", "ReferenceTable"]
