"""Hidden states of a base model that runs in another process: clients, the on-disk store, prefetching, and a server."""
