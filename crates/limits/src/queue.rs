//! Where calls wait.
//!
//! A waiting call is in one of two places: in a line, or set aside (jitter). A line holds the calls
//! of one caller and class that meet the same limits, in the order of their arrival; only its head is
//! ever asked, so what stands behind costs nothing.
//! There is a line as long as a call waits in it, so there are never more lines than calls.
//!
//! The door of a full queue is a number, not a place: the calls that wait above the capacity. Which
//! they are makes no difference. A call that comes to a full queue stands in its line like any
//! other, and runs when its turn and its limits come. So a queue that calls of one caller, class or
//! limit have filled holds up no others, and the law in [`fair`] holds for all that wait.

pub(crate) mod account;
mod bar;
mod calls;
pub(crate) mod fair;
mod waiting;

pub use bar::Ticket;
pub(crate) use bar::{Bar, LineId};
pub(crate) use calls::Queue;
pub(crate) use waiting::{Place, Waiting};
