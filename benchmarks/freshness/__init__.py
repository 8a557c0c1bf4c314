"""How soon what is learnt is served: a trainer and a model server as processes, and what travels between them."""
