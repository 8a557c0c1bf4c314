"""Parameter servers: tables in processes of their own, and the store through which a model trains on them."""
