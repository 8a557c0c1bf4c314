"""The demonstration behind ``monolith demo``, and the synthetic world whose clicks it trains on."""
