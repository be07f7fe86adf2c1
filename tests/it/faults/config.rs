//! The config of a process under test. All names of options stand here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client::Wire;
use super::matrix::{Cell, Column, Row};
use super::stores::Stores;

/// After which time a call without an answer is given up.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
/// How many wait where the queue is small.
pub(super) const FULL: usize = 5;
/// The change of a reload: from what and into what.
pub(super) const TURNS: (&str, &str) = ("promote_for = \"10s\"", "promote_for = \"11s\"");

/// The options that differ between two configs.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) backend: SocketAddr,
    wire: Wire,
    postpone: &'static str,
    capacity: usize,
    pub(super) in_flight: usize,
    pub(super) per_window: usize,
    /// Bytes of a body and an answer that are held.
    buffer: &'static str,
    has_state: bool,
    /// The state is on a separate disk.
    own_disk: bool,
    stores: String,
}

impl Options {
    pub(super) fn of(cell: Cell, backend: SocketAddr, stores: &Stores) -> Self {
        let is_full = cell.row == Row::Full;
        Self {
            backend,
            wire: cell.wire,
            postpone: match cell.row {
                Row::StormJitter => "jitter",
                _ => "in_turn",
            },
            capacity: if is_full { FULL } else { 4096 },
            in_flight: match cell.row {
                Row::Full | Row::Draining => 2,
                _ => 4,
            },
            per_window: match cell.row {
                // So few that clients which leave leave while they wait.
                Row::StormJitter | Row::StormInTurn => 24,
                _ => 60,
            },
            buffer: match cell.column {
                Column::NoMemory => "1KiB",
                _ => "64KiB",
            },
            has_state: cell.row == Row::Saving
                || matches!(cell.column, Column::FullDisk | Column::SlowFsync),
            own_disk: cell.column == Column::FullDisk,
            stores: stores.config(),
        }
    }
}

pub(super) fn state_file(options: &Options, folder: &Path) -> PathBuf {
    match options.own_disk {
        true => folder.join("disk/state.json"),
        false => folder.join("state.json"),
    }
}

pub(super) fn text(options: &Options, folder: &Path) -> String {
    let Options {
        backend,
        postpone,
        capacity,
        in_flight,
        per_window,
        buffer,
        stores,
        ..
    } = options;
    let protocol = match options.wire {
        Wire::Http => "http",
        Wire::Socket => "socket",
        Wire::Tcp => "tcp",
    };
    let state = match options.has_state {
        true => format!("state_file = \"{}\"", state_file(options, folder).display()),
        false => String::new(),
    };
    let reply = match *buffer {
        // Larger answers stream; of the socket backend none may be larger than that.
        "1KiB" => "reply_buffer_bytes = \"1KiB\"",
        _ => "reply_buffer_bytes = \"256KiB\"",
    };
    let seconds = RESPONSE_TIMEOUT.as_secs();
    let turn = TURNS.0;
    format!(
        "[server]\ndrain_timeout = \"8s\"\n\
         [[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
         [client]\nrequest_timeout = \"2s\"\nidle_timeout = \"5s\"\nwrite_timeout = \"2s\"\n\
         body_timeout = \"5s\"\ntunnel_idle_timeout = \"4s\"\nbuffer_bytes = \"{buffer}\"\n\
         [callers]\n{state}\n\
         [backend]\nkind = \"zvm\"\nsocket = \"{backend}\"\nhttp = \"http://{backend}\"\ntcp = \"{backend}\"\n\
         response_timeout = \"{seconds}s\"\npool_idle_timeout = \"1s\"\n{reply}\n\
         [queue]\npostpone = \"{postpone}\"\npostpone_jitter = [\"50ms\", \"150ms\"]\n\
         capacity = {capacity}\nworkers = 8\n\
         [limits]\nper_window = \"total:{per_window}\"\n\
         outstanding = {in_flight}\n\
         max_wait = \"15s\"\nwindow_stamp = \"replied\"\n\
         [classes]\n{turn}\n\
         {stores}\
         [admin]\nbind = \"127.0.0.1:0\"\n\
         [log]\nformat = \"json\"\n"
    )
}
