//! An empty library: this package is its bench.
