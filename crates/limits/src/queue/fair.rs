//! The law: the order of calls at every limit.
//!
//! "Limit" here is anything that calls draw from: a limit of the policy, a bucket, a quota. A call
//! may meet any number of them, and runs when all have room. The law holds with
//! [`Postpone::InTurn`](crate::policy::Postpone::InTurn) for every call, and with
//! [`Postpone::Jitter`](crate::policy::Postpone::Jitter) for calls that keep their place.
//!
//! **Fairness.** Each limit has its own order. While two callers of a class each have a call that
//! only this limit delays, their service there by weight, `W / w`, differs by at most one maximal
//! call of each: `|W1 / w1 - W2 / w2| <= l1 / w1 + l2 / w2`, as in start-time fair queuing. The
//! same holds between classes. The use of a reserve counts only between the callers of its class.
//! For a call that is settled, service is what it has cost in the end, from its end on. Three things add to the difference. A call that was given back is its caller's next turn. A call
//! that claims goes before its turn, and the next turns of its caller make up for it. And when
//! another limit opens at the same moment, one call may go before the calls that come from there.
//!
//! **Isolation.** What does not meet a limit moves no tag at it. It changes a wait there only through
//! a limit that both meet.
//!
//! **Work conservation.** If a limit and all other limits of the call whose turn it is have room,
//! the call runs. If another of its limits is closed, the next call in order goes. The only
//! exception is the room that a claim keeps.
//!
//! **Progress.** A call is *passed over* when its turn comes at a limit with room while another of
//! its limits is closed. Then it waits for its turn at that other limit. Two limits that open
//! alternately could pass a call over for ever. To prevent this, a call can *claim* one window
//! after it was first passed over: when its turn comes at one limit, and it has had its turn at the
//! limit that bars it. Then it goes to the front of the limit that bars it, and each other limit
//! where its turn has come keeps room for it.
//!
//! - Claims at a limit are in order of arrival. The claims of any two calls are in the same order
//!   at every limit, so no two calls wait for each other, and the first of them waits only for
//!   room.
//! - A claim keeps the room that one call draws. It lasts one window of its limit, and twice as
//!   long after each claim of the call that lapsed unused. It is not made if the limit that bars
//!   the call opens later than one window from now. For a limit without a window, the longest
//!   window that the call meets counts, or [`WINDOW`] if it meets none.
//! - So a claim leaves at most the draw of one call idle, for one window. `LimitNow::claimed` and
//!   `LimitNow::idle` report how much is and was kept.
//!
//! The wait of a call is bounded by the calls ahead of it and by its limits. Let `T(L)` be the
//! longest time until its turn comes in the order of limit `L`; `R(L)` the longest time until `L`
//! has room for one maximal call (the length of a window, or the longest run for an outstanding
//! limit); `w` the longest window; and `c` the number of earlier calls that claim at one of its
//! limits. Then `wait <= w + sum over L of (2 T(L) + 2 (c + 1) R(L))`. `T(L)` follows from fair
//! queuing: the earlier calls of its own caller, each with at most one maximal call of every other
//! caller and class by weight. Later calls add nothing, except that a new caller takes turns as one
//! more. More callers than [`OWN_GROUPS`](callers::OWN_GROUPS) share
//! [`SHARED_GROUPS`](callers::SHARED_GROUPS) turns.
//!
//! # How
//!
//! Start-time fair queuing, at each limit, between classes and between the callers of a class.
//!
//! Sources: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996; J. Bennett, H. Zhang,
//! "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996 (WF2Q+, which keeps a tag per flow
//! and not per packet); Kubernetes' API Priority and Fairness, which queues requests fairly and
//! deals hands of queues. Kubernetes dispatches nothing else while the call whose turn it is does
//! not fit. Here other calls go first, and a claim compensates the call for what that could cost
//! it.
//!
//! A group has one tag at a limit, its *start*. The group with the smallest start goes first. Ties
//! are broken by arrival, and between classes by the order of the policy. The service of a call of
//! length `l`, its tokens, moves the virtual time `v` up to the start of its group, and moves the
//! start on by `l / w`. A group that begins to wait starts at `v` if `v` has passed its start:
//! unused turns are not saved up. A call that leaves without service moves nothing. The rate of the
//! limit is not needed, so the order stays fair when the rate varies, as it does when a limit
//! closes and opens.
//!
//! Tags count only while calls wait: an order without a flow forgets them. Service while no call
//! waits costs no call anything.
//!
//! **Numbers.** Tags are in millionths of a token, rounded up, and a call counts for at least a
//! thousandth of a token, so that calls that cost nothing take turns too.
//!
//! **State is bounded.** A start that `v` has passed carries no information and is forgotten. An
//! order remembers at most [`OWN_GROUPS`](callers::OWN_GROUPS) callers of a class. Further callers
//! share [`SHARED_GROUPS`](callers::SHARED_GROUPS) groups (shuffle sharding, as in the Kubernetes API
//! server): each has a hand of [`HAND`](callers::HAND) of them by a hash of its number, and joins
//! the one that would serve it first. So an endless stream of new callers, each starting at `v`,
//! cannot take all turns, and two callers rarely have the same hand. While such a caller has a
//! flow, its other flows join the same group.

mod callers;
mod digest;
mod order;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use order::FairOrder;
pub(crate) use service::{ClassFilter, FlowEntry, OrderSettings, TurnAdvance, WINDOW};
