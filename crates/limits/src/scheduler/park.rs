//! Where flows wait, and which to ask.
//!
//! A flow contains the calls of one caller and class that meet the same limits. Only the first of
//! them, its head, is ever asked. A flow with a head is either ready to be asked, or parked at the
//! limit, bucket or quota that bars its head. There it waits in the order of that limit
//! ([`Order`](crate::queue::fair::FairOrder)). Only the first flow of an order is asked again when
//! something changes there: a release, a supply, or the moment it opens. Flows behind it have a
//! later turn and may not draw before it. When the first flow leaves, for any reason, the next one
//! is asked.
//!
//! Where flows are parked, then, either the first of them is the one that was looked at last and is
//! still barred (`asked`), or the wait list is on the `changed` list. [`Parking::next_changed`] empties the
//! list, so nothing that could run is ever overlooked and nothing that can't is asked twice.
//!
//! A flow whose turn comes is asked where it is parked, and leaves only when the answer is known.
//! When its head runs, the flow stays there for its next call.
//!
//! A limit with a reserve has two wait lists, one for the class with the reserve and one for all others,
//! because room for one need not be room for the other. Both share one order.
//!
//! Claims come before the order of each limit: see the law in `queue/fair.rs`. A flow that claims
//! is at the front of the limit that bars it, and its claims at other limits keep room there.

mod audit;
mod claims;
mod digest;
mod flow;
mod flows;
mod reload;
mod service;
#[cfg(test)]
mod tests;
mod wake;

pub(super) use flow::{FlowKey, SecondList};
pub(super) use flows::Parking;
pub(super) use wake::Candidate;
