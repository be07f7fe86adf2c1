//! A ledger as its next process finds it: after each store, after damage, and at its bounds.

mod bounds;
mod damage;
mod laws;
mod recorded;
