"""Model servers under load: requests per second and waits beside LitServe and FastAPI, a swap, a load."""
