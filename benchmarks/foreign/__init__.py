"""Our draft networks beside those of other projects, with the same random weights (`benchmarks.foreign_networks`)."""
