//! A ledger holds what a limiter must not forget when its process dies.
//!
//! Three kinds of state would give a backend more than its limits allow if a new process began without them: the
//! departures that still count in a window, the calls that are still at the backend, and the levels of token buckets. A
//! fourth kind would cost clients their turns: the places in the queue that they were promised.
//! A [`Ledger`] keeps them in 64-bit words of a [`Memory`], which the product maps from a file. Killing a process does
//! not undo its stores, so the next process finds every store that came before the kill. No system call is needed.
//!
//! **Order is the whole protocol.** A call is [admitted](Ledger::admit) before its first byte leaves. It
//! [departs](Ledger::depart) from there into the rings of its windows, and [ends](Ledger::end) last. A process that
//! dies between two stores leaves a call counted twice, or a record whose seal is broken; it never leaves a call
//! uncounted that the backend has seen. A broken seal makes the whole ledger void ([`Void`]), and the reader then
//! assumes that everything was used.
//!
//! **Every record has a seal**: a hash of its words, its kind and its place. Damage, records in another place, and
//! ranges of zeros are found by it, or by the counts of live records.
//!
//! Moments are nanoseconds of a clock that all processes of one boot share (`CLOCK_BOOTTIME`). A ledger of another boot
//! is void: no call survives a reboot.
//!
//! | file | content |
//! |---|---|
//! | `layout.rs` | which regions a ledger has, and where they are |
//! | `write.rs` | what a running process stores |
//! | `read.rs` | what the next process finds |
//! | `rows.rs` | a ledger of rows that change as a whole |
//! | `record.rs` | parts of records that both know |
//! | `seal.rs` | the hash over a record |

mod layout;
mod read;
mod record;
mod rows;
mod seal;
mod write;

pub use layout::{Boot, Layout, NAME_BYTES_MAX, TooLarge, WindowRegion};
pub use read::{
    CallAtBackend, Carryover, Departure, LevelRecord, PromisedPlace, Void, WindowDepartures, read,
};
pub use record::{CallStage, JobRecord, level_key};
pub use rows::{PastRows, Row, RowLedger, read_rows};
pub use write::{Admission, Ledger, Memory};
