"""Conformance suites, and checkers of recorded histories: which behaviour every implementation must show."""
