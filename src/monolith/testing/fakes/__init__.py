"""Fakes: small stand-ins for clocks, agents, models and publishers. Each passes the suite of the real thing."""
