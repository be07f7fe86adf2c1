//! Every test of the app, in one binary.

mod scenarios;
