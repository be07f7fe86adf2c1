//! A ledger as its next process finds it: after each store, and after damage.

mod damage;
mod laws;
mod recorded;
