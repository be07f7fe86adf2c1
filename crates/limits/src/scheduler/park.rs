//! Where lines wait, and which to ask.
//!
//! A line holds the calls of one caller and class that meet the same limits, and only the first of
//! them, its head, is ever asked. A line with a head is either ready, which means that it is to be
//! asked, or parked at a limit, bucket or quota that bars its head. There it stands in the order of
//! that one ([`Order`]). Only the first line of an order is looked at again when something changes
//! there: a release, a supply, the moment it opens. Those behind it have a later turn, and may not
//! draw before it. When the first one leaves, for whatever reason, the next is looked at.
//!
//! Where lines are parked, then, either the first of them is the one that was looked at last and is
//! still barred (`asked`), or the spot is on the `changed` list. [`Parking::next_changed`] empties the
//! list, so nothing that could run is ever overlooked and nothing that can't is asked twice.
//!
//! A line whose turn comes is asked where it stands, and leaves only when the answer is known. A head
//! that runs leaves the line where it was for the next one.
//!
//! A limit that keeps something for one class has two spots, one for that class and one for all
//! others, since what lets one of them run may not let the other. Both share one order.
//!
//! Before its order each limit has its *claims*: see the law in `queue/fair.rs`. A line that claims
//! stands at the front of the limit that bars it, and its claims at others keep room there.

mod at;
mod audit;
mod claims;
mod line;
mod lines;
mod reload;
mod service;
mod stand;
#[cfg(test)]
mod tests;
mod wake;

pub(super) use line::{LineKey, Own};
pub(super) use lines::Parking;
pub(super) use wake::Asked;
