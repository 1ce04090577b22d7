"""Hidden states of a base that runs elsewhere: clients of its servers, the store between them and the training, and
what waits for a server that is away."""
