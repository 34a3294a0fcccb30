//! An API server for tests: pods of a cluster of any size, over TLS, as slow and as broken as a test wants it.
