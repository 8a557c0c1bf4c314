"""How soon what is learnt is served: trainer, parameter servers and a model server as processes, and what travels."""
