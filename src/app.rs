//! app.

pub mod teller;
