//! The cells: what the process does, what goes wrong meanwhile, and which protocol is spoken. A cell
//! that is not run has a reason here.

use std::time::Duration;

use super::account::Allowed;
use super::client::{Shape, Way, Wire};

/// The work of the process when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Row {
    Idle,
    StormJitter,
    StormInTurn,
    Up,
    Down,
    Full,
    Draining,
    Reloading,
    Saving,
    FailOver,
}

impl Row {
    pub(super) const ALL: [Self; 10] = [
        Self::Idle,
        Self::StormJitter,
        Self::StormInTurn,
        Self::Up,
        Self::Down,
        Self::Full,
        Self::Draining,
        Self::Reloading,
        Self::Saving,
        Self::FailOver,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::StormJitter => "storm, jitter",
            Self::StormInTurn => "storm, in turn",
            Self::Up => "streaming up",
            Self::Down => "streaming down",
            Self::Full => "waiting full",
            Self::Draining => "draining",
            Self::Reloading => "reloading",
            Self::Saving => "saving state",
            Self::FailOver => "fail-over of a store",
        }
    }

    /// How the test sees that it is in this state before the fault begins.
    pub(super) fn is_reached_when(self) -> &'static str {
        match self {
            Self::Idle => "calls were answered, connections are pooled, nothing is under way",
            Self::StormJitter | Self::StormInTurn => {
                "16 clients in a closed loop; 4 calls at the backend or more wait than run"
            }
            Self::Up => "a request of 200 kB has reached the backend in part",
            Self::Down => "an answer of 400 kB has been sent in part",
            Self::Full => "`queue.capacity` calls wait, and further clients are at the door",
            Self::Draining => "calls run and wait, SIGTERM has been sent and logged",
            Self::Reloading => "calls run, and a SIGHUP with a changed config arrives every 100 ms",
            Self::Saving => "calls run, and a caller is made through the admin address every 20 ms",
            Self::FailOver => {
                "calls draw from a quota in an etcd of three, whose leader has just been killed"
            }
        }
    }

    pub(super) fn load(self, wire: Wire) -> Load {
        let ms = Duration::from_millis;
        let small = Shape {
            up: 0,
            up_takes: Duration::ZERO,
            down: 256,
            takes: ms(20),
        };
        let load = Load {
            clients: 6,
            shape: small,
            think: ms(10),
        };
        match self {
            Self::Idle => Load { clients: 0, ..load },
            Self::StormJitter | Self::StormInTurn => Load {
                clients: 16,
                think: Duration::ZERO,
                ..load
            },
            Self::Up => Load {
                shape: Shape {
                    up: 200_000,
                    up_takes: ms(600),
                    ..small
                },
                ..load
            },
            Self::Down => Load {
                shape: Shape {
                    down: 400_000,
                    takes: ms(600),
                    ..small
                },
                ..load
            },
            Self::Full => Load {
                clients: 14,
                shape: Shape {
                    takes: ms(150),
                    ..small
                },
                think: Duration::ZERO,
            },
            Self::Draining => Load {
                clients: 10,
                shape: Shape {
                    takes: ms(250),
                    ..small
                },
                think: Duration::ZERO,
            },
            Self::Reloading | Self::Saving | Self::FailOver => match wire {
                Wire::Tcp => Load { clients: 4, ..load },
                _ => load,
            },
        }
    }
}

/// Clients in a closed loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) clients: usize,
    pub(super) shape: Shape,
    pub(super) think: Duration,
}

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Column {
    BackendFin,
    BackendRst,
    BackendHalfClose,
    BackendRestart,
    BackendBlackHole,
    BackendSlowAccept,
    BackendGarbage,
    BackendEarly,
    BackendMoved,
    ClientLeaves,
    ClientHalfCloses,
    ClientStalls,
    ClientSendsMore,
    FewDescriptors,
    FullDisk,
    SlowFsync,
    StalledLog,
    ClockStep,
    Stopped,
    HangUps,
    NoMemory,
    StoreAway,
    StoreSlow,
    StoreWiped,
    StoreDenied,
    LeaseAway,
    LeaseSlow,
    LeaseWiped,
    LeaseDenied,
}

impl Column {
    pub(super) const ALL: [Self; 29] = [
        Self::BackendFin,
        Self::BackendRst,
        Self::BackendHalfClose,
        Self::BackendRestart,
        Self::BackendBlackHole,
        Self::BackendSlowAccept,
        Self::BackendGarbage,
        Self::BackendEarly,
        Self::BackendMoved,
        Self::ClientLeaves,
        Self::ClientHalfCloses,
        Self::ClientStalls,
        Self::ClientSendsMore,
        Self::FewDescriptors,
        Self::FullDisk,
        Self::SlowFsync,
        Self::StalledLog,
        Self::ClockStep,
        Self::Stopped,
        Self::HangUps,
        Self::NoMemory,
        Self::StoreAway,
        Self::StoreSlow,
        Self::StoreWiped,
        Self::StoreDenied,
        Self::LeaseAway,
        Self::LeaseSlow,
        Self::LeaseWiped,
        Self::LeaseDenied,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BackendFin => "backend: FIN",
            Self::BackendRst => "backend: RST",
            Self::BackendHalfClose => "backend: half-close",
            Self::BackendRestart => "backend: restart",
            Self::BackendBlackHole => "backend: black hole",
            Self::BackendSlowAccept => "backend: slow accept",
            Self::BackendGarbage => "backend: garbage",
            Self::BackendEarly => "backend: early answer",
            Self::BackendMoved => "backend: moved by reload",
            Self::ClientLeaves => "client: leaves",
            Self::ClientHalfCloses => "client: half-closes",
            Self::ClientStalls => "client: stalls",
            Self::ClientSendsMore => "client: sends more",
            Self::FewDescriptors => "system: few descriptors",
            Self::FullDisk => "system: full disk",
            Self::SlowFsync => "system: slow disk",
            Self::StalledLog => "system: stalled log reader",
            Self::ClockStep => "system: clock step",
            Self::Stopped => "system: SIGSTOP, SIGCONT",
            Self::HangUps => "system: SIGHUP every second",
            Self::NoMemory => "system: no memory for a buffer",
            Self::StoreAway => "store: unavailable",
            Self::StoreSlow => "store: slow",
            Self::StoreWiped => "store: wiped",
            Self::StoreDenied => "store: denied",
            Self::LeaseAway => "lease server: unavailable",
            Self::LeaseSlow => "lease server: slow",
            Self::LeaseWiped => "lease server: wiped",
            Self::LeaseDenied => "lease server: denied",
        }
    }

    pub(super) fn injects(self) -> &'static str {
        match self {
            Self::BackendFin => {
                "for 0.5 s the backend closes every connection, idle or busy, and answers nothing"
            }
            Self::BackendRst => "the same with resets",
            Self::BackendHalfClose => {
                "for 0.5 s the backend closes its sending side of every connection that is idle \
                 for 10 ms, and continues to read"
            }
            Self::BackendRestart => "every connection is reset, and nothing listens for 0.5 s",
            Self::BackendBlackHole => {
                "for 0.5 s the backend reads and never answers; `response_timeout` and \
                 `tunnel_idle_timeout` are 4 s"
            }
            Self::BackendSlowAccept => "for 0.7 s the backend accepts nothing",
            Self::BackendGarbage => {
                "for 0.5 s the backend answers with noise, and sends noise on idle connections"
            }
            Self::BackendEarly => {
                "for 0.5 s the backend answers before it has read the body, and sends a 408 on \
                 idle connections"
            }
            Self::BackendMoved => {
                "a reload names another backend; the old one continues to run and must get no \
                 further call"
            }
            Self::ClientLeaves => "for 0.5 s a third of the clients close, half of them by reset",
            Self::ClientHalfCloses => "for 0.5 s a third of the clients close their sending side",
            Self::ClientStalls => {
                "a third of the clients neither read nor write for 3 s; their timeouts are 2 s"
            }
            Self::ClientSendsMore => {
                "for 0.5 s a third of the clients send more than their request; half of them \
                 close right after"
            }
            Self::FewDescriptors => {
                "the process has 128 descriptors, and 200 further clients connect and are silent \
                 for 1 s"
            }
            Self::FullDisk => {
                "the disk of the state file is full for 1 s, and a caller must be saved"
            }
            Self::SlowFsync => {
                "saving the state hangs for 1.5 s (a FIFO has the name of the file), and a \
                 SIGHUP arrives meanwhile"
            }
            Self::StalledLog => {
                "stderr is full and nothing reads it for 2 s; a SIGHUP arrives meanwhile"
            }
            Self::ClockStep => {
                "the time of day steps an hour forward, then two hours back, \
                 while calls meet windows, deadlines, a lease and a quota"
            }
            Self::Stopped => "SIGSTOP, and SIGCONT 1 s later",
            Self::HangUps => "SIGHUP every second, three times, with a changed config",
            Self::NoMemory => {
                "the bounds of the config allow 1 KiB for a body and for an answer, and answers \
                 are larger"
            }
            Self::StoreAway => "for 1 s every connection to Redis is cut",
            Self::StoreSlow => "for 1 s nothing passes between it and Redis",
            Self::StoreWiped => "FLUSHALL",
            Self::StoreDenied => "for 1 s Redis requires a password that the sidecar does not have",
            Self::LeaseAway => "for 1.5 s every connection to the capacity server is cut",
            Self::LeaseSlow => "for 1.5 s nothing passes between it and the capacity server",
            Self::LeaseWiped => "the capacity server is killed and started again, empty",
            Self::LeaseDenied => {
                "the capacity server is started again with rules that refuse the resource"
            }
        }
    }

    /// How a client behaves whose number this is.
    pub(super) fn way(self, client: usize) -> Way {
        let (misbehaves, half) = (client.is_multiple_of(3), client.is_multiple_of(2));
        if !misbehaves {
            return Way::Stays;
        }
        match self {
            Self::ClientLeaves if half => Way::Leaves,
            Self::ClientLeaves => Way::Resets,
            Self::ClientHalfCloses => Way::HalfCloses,
            Self::ClientStalls => Way::Stalls(Duration::from_secs(3)),
            Self::ClientSendsMore if half => Way::SendsMore,
            Self::ClientSendsMore => Way::SendsMoreAndLeaves,
            _ => Way::Stays,
        }
    }

    pub(super) fn is_of_the_store(self) -> bool {
        matches!(
            self,
            Self::StoreAway | Self::StoreSlow | Self::StoreWiped | Self::StoreDenied
        )
    }

    pub(super) fn is_of_leases(self) -> bool {
        matches!(
            self,
            Self::LeaseAway | Self::LeaseSlow | Self::LeaseWiped | Self::LeaseDenied
        )
    }

    /// For how long it lasts.
    pub(super) fn lasts(self) -> Duration {
        Duration::from_millis(match self {
            Self::BackendSlowAccept => 700,
            Self::FewDescriptors
            | Self::FullDisk
            | Self::Stopped
            | Self::StoreAway
            | Self::StoreSlow
            | Self::StoreDenied => 1000,
            Self::SlowFsync | Self::LeaseAway | Self::LeaseSlow => 1500,
            Self::StalledLog => 2000,
            Self::HangUps => 2500,
            _ => 500,
        })
    }
}

/// A cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Cell {
    pub(super) row: Row,
    pub(super) column: Column,
    pub(super) wire: Wire,
}

impl Cell {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for wire in [Wire::Http, Wire::Socket, Wire::Tcp] {
            for row in Row::ALL {
                for column in Column::ALL {
                    all.push(Self { row, column, wire });
                }
            }
        }
        all
    }

    pub(super) fn name(self) -> String {
        format!(
            "{} / {} / {}",
            self.wire.name(),
            self.row.name(),
            self.column.name()
        )
    }

    /// Why it is not run; none if it is.
    pub(super) fn reason(self) -> Option<&'static str> {
        let Self { row, column, wire } = self;
        let is_tcp = wire == Wire::Tcp;
        Some(match (row, column) {
            (Row::Up, _) if wire == Wire::Socket => {
                "a request of the socket protocol has at most `max_request_bytes` and is held \
                 whole, so none is streamed"
            }
            (_, Column::BackendGarbage) if is_tcp => {
                "any bytes are valid in a tunnel, so none are garbage"
            }
            (_, Column::BackendEarly) if is_tcp => {
                "a tunnel has no requests, so no answer can be early"
            }
            (_, Column::ClientSendsMore) if is_tcp => {
                "a tunnel has no requests, so there cannot be more than one"
            }
            (_, Column::NoMemory) if is_tcp => {
                "a tunnel copies through two buffers of a fixed size; no option bounds them"
            }
            (Row::Idle, Column::BackendEarly | Column::BackendGarbage) if wire == Wire::Socket => {
                "no connection to the socket backend is kept, so no idle one can carry bytes"
            }
            (Row::Idle, Column::NoMemory) => "an idle process has no buffer",
            (Row::Draining, Column::BackendMoved) => {
                "a draining process does not reload: it no longer reads SIGHUP"
            }
            (Row::Draining, Column::HangUps) => {
                "a draining process does not reload; the cell HTTP / draining / stalled log \
                 reader shows that SIGHUP does not end it"
            }
            (Row::Draining, Column::SlowFsync | Column::FullDisk) => {
                "a draining process changes no caller and saves at exit; see saving state"
            }
            (Row::Draining, Column::FewDescriptors) => {
                "a draining process accepts nothing, so further clients cost no descriptor"
            }
            (Row::FailOver, _) if column.is_of_the_store() => {
                "one config has one store: its other faults are tested with Redis in the rows \
                 above, and with etcd and ZooKeeper in docs/reports/quota-faults.md"
            }
            (Row::FailOver, _) if is_tcp => {
                "calls of all protocols draw from a quota in the same way; HTTP and socket run it"
            }
            (Row::Draining, _) if column.is_of_leases() || column.is_of_the_store() => {
                if wire == Wire::Http {
                    return None;
                }
                "what a drain does with the store and the capacity server does not depend on \
                 the protocol; HTTP runs it"
            }
            (Row::Saving | Row::Reloading, _) if is_tcp => {
                "saving and reloading do not depend on the content of a tunnel; HTTP and socket \
                 run it"
            }
            (_, _) if is_tcp && (column.is_of_leases() || column.is_of_the_store()) => {
                "a tunnel meets the same limits at the same gate; HTTP and socket run it"
            }
            (_, Column::FullDisk | Column::SlowFsync) if is_tcp => {
                "saving does not depend on the content of a tunnel; HTTP and socket run it"
            }
            _ => return None,
        })
    }

    /// Whether it is run with every test: cells of every row and of every column, of each protocol.
    pub(super) fn is_in_short(self) -> bool {
        let place = self.row as usize + self.column as usize + 2 * self.wire as usize;
        // Three members of etcd take a second to start.
        let one_in = if self.row == Row::FailOver { 12 } else { 4 };
        place.is_multiple_of(one_in) && self.reason().is_none()
    }

    /// The results that calls of clients that behave may come to besides their answer.
    pub(super) fn allowed(self) -> Allowed {
        let Self { row, column, wire } = self;
        const NOTHING: Allowed = Allowed {
            reasons: &[],
            dropped: false,
            cut: false,
            no_connection: false,
            odd: false,
        };
        let mut allowed = match column {
            // Calls come when the fault has passed, so each is answered.
            _ if row == Row::Idle => NOTHING,
            // Where a connection ends after it was chosen and before a byte was written,
            // backend_unreachable says that nothing was.
            Column::BackendFin | Column::BackendRst | Column::BackendRestart => Allowed {
                reasons: &["backend_closed", "backend_cut", "backend_unreachable"],
                cut: true,
                ..NOTHING
            },
            // A call may be written at the very moment when its connection is closed.
            Column::BackendHalfClose => Allowed {
                reasons: &["backend_closed", "backend_unreachable"],
                ..NOTHING
            },
            Column::BackendBlackHole => Allowed {
                reasons: &["backend_slow"],
                cut: row == Row::Down,
                ..NOTHING
            },
            Column::BackendGarbage => Allowed {
                reasons: &["backend_closed", "backend_cut"],
                cut: row == Row::Down,
                // Replies of the socket backend that are not JSON are forwarded unchanged.
                odd: wire == Wire::Socket,
                ..NOTHING
            },
            // A backend that answers and closes with the request unread resets its answer away.
            Column::BackendEarly if wire == Wire::Socket || row == Row::Up => Allowed {
                reasons: &["backend_closed", "backend_cut"],
                odd: true,
                ..NOTHING
            },
            // A 408 that crosses a request is its answer, for all that anybody can know.
            Column::BackendEarly => Allowed {
                reasons: &["backend_closed"],
                odd: true,
                ..NOTHING
            },
            _ => NOTHING,
        };
        // A tunnel whose backend ends it before it has said anything just closes.
        if wire == Wire::Tcp && (allowed.cut || column == Column::BackendHalfClose) {
            allowed.dropped = true;
        }
        if wire == Wire::Tcp && column == Column::BackendBlackHole {
            // Only idle_timeout ends it.
            allowed.dropped = true;
            allowed.cut = true;
        }
        if row == Row::Draining {
            allowed.reasons = match column {
                Column::BackendFin
                | Column::BackendRst
                | Column::BackendHalfClose
                | Column::BackendRestart
                | Column::BackendGarbage
                | Column::BackendEarly => &[
                    "draining",
                    "backend_closed",
                    "backend_cut",
                    "backend_unreachable",
                ],
                Column::BackendBlackHole => &["draining", "backend_slow"],
                _ => &["draining"],
            };
            // Listeners are closed: later clients find none.
            allowed.no_connection = true;
            allowed.dropped = true;
        }
        allowed
    }
}
