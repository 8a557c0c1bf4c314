"""Reference implementations: slow, plain models of the native code, which must agree with them."""
