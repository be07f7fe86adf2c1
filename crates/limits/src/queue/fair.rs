//! The law: who goes when, at every limit.
//!
//! "Limit" here is anything that calls draw from: a limit of the policy, a bucket, a quota. A call
//! may meet any number of them, and runs when all have room. The law holds with
//! [`Postpone::InTurn`](crate::Postpone::InTurn) for every call, and with
//! [`Postpone::Jitter`](crate::Postpone::Jitter) for calls that keep their place.
//!
//! **Fairness.** Each limit has an order of its own. While two callers of a class each have a call
//! that only this limit holds up, their service there by weight, `W / w`, differs by at most one
//! maximal call of each: `|W1 / w1 - W2 / w2| <= l1 / w1 + l2 / w2`, which is what start-time fair
//! queuing has. The same holds between classes; what a limit keeps for a class counts between the
//! callers of this class alone. Three things add to it: a call that was given back is the next turn of
//! its caller; a call that claims goes before its turn, and the next turns of its caller make up for it;
//! and when another limit opens at the same moment, one call may go before those that come from there.
//!
//! **Isolation.** What does not meet a limit moves no tag at it. It changes a wait there only through
//! a limit that both meet.
//!
//! **Work conservation.** While a limit has room for the call whose turn it is there, and all that
//! this call meets has room, the call runs. While it can't, because another of its limits is closed,
//! the next in order goes. The one exception is the room that a claim leaves idle.
//!
//! **Progress.** A call is *passed over* when its turn comes at a limit that has room and another of
//! its limits is closed. Then it waits for its turn at that other one. Without more, two limits that
//! open by turns could pass a call over for ever. So, one window after it was first passed over, a
//! call whose turn comes at one limit and which has had its turn at the one that bars it *claims*: it
//! goes to the front of the limit that bars it, and the room of each other limit where its turn has
//! come is kept for it.
//!
//! - Claims at a limit go by arrival. The claims of one call stand everywhere in the same order as
//!   those of another, so no two calls wait for each other, and what the first of them waits for is
//!   room alone.
//! - A claim keeps room for one call: what this call draws. It lasts one window of the limit at
//!   which it stands, twice as long each time one of the call lapsed in vain, and is not made where
//!   the limit in the way opens later than one window from now. The window of a limit that is no
//!   window is the longest one that the call meets, or [`WINDOW`] if it meets none.
//! - So a claim leaves idle at most the draw of one call for one window. `LimitNow::claimed` and
//!   `LimitNow::idle` say how much is kept and has been.
//!
//! The wait of a call is bounded by what is ahead of it and by its limits. With `T(L)` the longest
//! that it takes at limit `L` until its turn comes by the order there, `R(L)` the longest until `L`
//! has room for one maximal call (a window for a window, the longest run for what is outstanding),
//! `w` the longest window and `c` the calls before it by arrival that claim at one of its limits:
//! `wait <= w + sum over L of (2 T(L) + 2 (c + 1) R(L))`. `T(L)` is what fair queuing says: the
//! calls of its own caller before it, each with at most one maximal call of every other caller and
//! class by weight. Nothing in it grows with what comes after the call, except that a new caller
//! takes turns as one more; more callers than [`OWN_FLOWS`] share [`SHARED_FLOWS`] turns.
//!
//! # How
//!
//! Start-time fair queuing, at each limit, between classes and between the callers of a class.
//!
//! Sources: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996; J. Bennett, H. Zhang,
//! "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996 (WF2Q+, from which it has that the
//! tag is kept for a flow and not for each packet); Kubernetes' API Priority and Fairness, which
//! queues requests fairly and deals hands of queues. That one dispatches nothing else while the call
//! whose turn it is does not fit; here others go on, and what this could take from a call, its claim
//! gives back.
//!
//! A flow has one tag at a limit, its *start*. The flow with the least start goes first; ties go by
//! arrival, and between classes by the order of the policy. The service of a call of length `l`, its tokens, moves the virtual time `v` up to the
//! start of its flow, and the start on by `l / w`. A flow that begins to wait starts at `v` if that
//! has passed it: what is not used is not saved up. Who leaves without service has moved nothing. It
//! needs no knowledge of the limit's rate, so it stays fair when that varies, which is exactly what a
//! limit that closes and opens makes it do.
//!
//! Tags count while somebody waits: an order without a line forgets them. What is served while
//! nobody waits is nobody's loss.
//!
//! **Numbers.** Tags are in millionths of a token, rounded up, and a call counts for at least a
//! thousandth of a token, so that calls that cost nothing take turns too.
//!
//! **State is bounded.** A start that `v` has passed says nothing and is forgotten. An order
//! remembers at most [`OWN_FLOWS`] callers of a class; while it remembers as many, those that come
//! on top share [`SHARED_FLOWS`] flows (shuffle sharding, as in the Kubernetes API server): each has
//! a hand of [`HAND`] of them by a hash of its number, and joins the one that would serve it first.
//! So an endless stream of new callers, each of whom would start at `v`, cannot take all turns, and
//! two callers rarely have the same hand. As long as such a caller has a line there, its others go to
//! the same flow.

mod callers;
mod order;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use order::Order;
pub(crate) use service::{Common, Entry, Part, Service, WINDOW};
