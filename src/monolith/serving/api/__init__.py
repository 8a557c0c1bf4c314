"""The wire: REST, gRPC, TensorFlow Serving's messages, the logs of requests, and the client."""
