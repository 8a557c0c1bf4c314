"""RPC: gRPC servers and channels, TLS, tokens, and the one table of errors and status codes.

``security`` holds plain values, ``status`` maps errors to codes, ``grpc`` opens channels and makes servers. Only
``grpc`` needs the grpcio package; the other two import nothing outside the standard library.
"""
