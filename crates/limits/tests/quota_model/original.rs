//! The algorithm that the quota improves on, as it was published: curator-go's example of a rate
//! limiter on ZooKeeper, with its watch-fed caches, its lock that is none within a process, and
//! its writes without versions.
//!
//! There is no clock and no network in it. Each test says step by step what happens in between: when
//! a watch is delivered, who runs first, who dies. What comes of it is left in a [`Log`].

use crate::quota_model::check::{Entry, Log, Nanos};
use crate::quota_model::world::MS;

const KEY: usize = 0;
/// Length of a window.
pub(crate) const WINDOW: Nanos = 60_000 * MS;

/// The contents of the store, as every node can read it.
struct Store {
    usable: i64,
    /// When the znode was changed that says when the window began.
    refreshed_at: Nanos,
    /// The true number of the window.
    window: u64,
}

struct Node {
    /// The balance that the watches brought last.
    usable: i64,
    refreshed_at: Nanos,
    left: i64,
    /// How far its clock runs ahead.
    ahead: Nanos,
}

/// A write that a node decided on and has not done yet: it holds the lock, or believes so.
pub(crate) struct Pending {
    node: usize,
    usable: i64,
    granted: i64,
    /// The node's own balance to come, or the amount to add to it.
    left: Balance,
    admits: i64,
}

enum Balance {
    Is(i64),
    Grows(i64),
}

pub(crate) struct Original {
    total: i64,
    base: i64,
    prefetches: bool,
    store: Store,
    nodes: Vec<Node>,
    now: Nanos,
    pub(crate) log: Log,
}

impl Original {
    pub(crate) fn new(nodes: usize, total: i64, base: i64) -> Self {
        let mut original = Self {
            total,
            base,
            prefetches: false,
            store: Store {
                usable: total,
                refreshed_at: 0,
                window: 0,
            },
            nodes: Vec::new(),
            now: 0,
            log: Log {
                entries: Vec::new(),
                lengths: vec![WINDOW],
                totals: vec![total as u64],
                on_account: vec![0],
                stranded: vec![(nodes as i64 * base) as u64],
                steps: 0,
                step_count: 0,
                supplied_within: 0,
            },
        };
        original
            .log
            .entries
            .push(original.committed(total, 0, 0, true));
        for _ in 0..nodes {
            original.nodes.push(Node {
                usable: total,
                refreshed_at: 0,
                left: 0,
                ahead: 0,
            });
            let node = original.nodes.len() - 1;
            original.begin(node);
        }
        original
    }

    /// A run in which all the tokens that nodes begin with are granted by the store, to see other faults.
    pub(crate) fn without_free_base(nodes: usize, total: i64, base: i64) -> Self {
        let mut original = Self::new(nodes, total, base);
        for node in &mut original.nodes {
            node.left = 0;
        }
        original
    }

    pub(crate) fn prefetching(mut self) -> Self {
        self.prefetches = true;
        self
    }

    fn window(&self) -> u64 {
        self.now / WINDOW
    }

    fn committed(&self, left: i64, granted: i64, back: i64, opens: bool) -> Entry {
        Entry::Committed {
            key: KEY,
            window: self.store.window,
            left: left.max(0) as u64,
            pool: self.total as u64,
            total: self.total as u64,
            granted: granted.max(0) as u64,
            back: back as u64,
            at: self.now,
            opens,
            ends: Nanos::MAX,
        }
    }

    /// A node starts: it takes a base that was not granted.
    fn begin(&mut self, node: usize) {
        self.nodes[node].left = self.base;
        self.deliver(node);
    }

    pub(crate) fn restart(&mut self, node: usize) {
        self.begin(node);
        self.log
            .entries
            .push(Entry::Restarted { node, at: self.now });
    }

    pub(crate) fn skew(&mut self, node: usize, ahead: Nanos) {
        self.nodes[node].ahead = ahead;
    }

    pub(crate) fn pass(&mut self, time: Nanos) {
        self.now += time;
    }

    /// A node's watches bring what stands in the store.
    pub(crate) fn deliver(&mut self, node: usize) {
        self.nodes[node].usable = self.store.usable;
        self.nodes[node].refreshed_at = self.store.refreshed_at;
    }

    /// A node holds this; for the test of what becomes of it.
    pub(crate) fn left(&self, node: usize) -> i64 {
        self.nodes[node].left
    }

    fn admit(&mut self, node: usize, size: i64) {
        self.log.entries.push(Entry::Admit {
            node,
            key: KEY,
            window: self.store.window,
            drawn: size as u64,
            safe: 0,
            owed: 0,
            at: self.now,
            pause: 0,
        });
    }

    /// Makes a request, all the way, with every watch delivered at once.
    pub(crate) fn request(&mut self, node: usize, size: i64) -> bool {
        let Some(pending) = self.ask(node, size) else {
            return self.last_was_admitted();
        };
        let admits = pending.admits > 0;
        self.write(pending);
        for node in 0..self.nodes.len() {
            self.deliver(node);
        }
        admits
    }

    fn last_was_admitted(&self) -> bool {
        matches!(self.log.entries.last(), Some(Entry::Admit { .. }))
    }

    /// Makes a request up to the point at which a draw would write.
    pub(crate) fn ask(&mut self, node: usize, size: i64) -> Option<Pending> {
        let before = self.nodes[node].left;
        if self.nodes[node].usable <= 0 {
            self.refused(before, before);
            return None;
        }
        self.nodes[node].left -= size;
        if self.prefetches && self.nodes[node].left * 5 <= self.base {
            let pending = self.prefetch(node);
            if let Some(pending) = pending {
                self.write(pending);
            }
        }
        if self.nodes[node].left >= 0 {
            self.admit(node, size);
            return None;
        }
        self.draw(node, size, before)
    }

    fn refused(&mut self, before: i64, after: i64) {
        let units = |left: i64| (left + 1_000_000) as u64;
        self.log.entries.push(Entry::Refuse {
            before: units(before),
            after: units(after),
        });
    }

    /// By the cache, whatever stands in the store.
    fn draw(&mut self, node: usize, size: i64, before: i64) -> Option<Pending> {
        let usable = self.nodes[node].usable;
        self.log.entries.push(Entry::Asked { node, key: KEY });
        if size > usable {
            self.log.entries.push(Entry::Answered { node, key: KEY });
            let after = self.nodes[node].left;
            self.refused(before, after);
            return None;
        }
        let pending = if usable > self.base && usable - size >= self.base {
            Pending {
                node,
                usable: usable - size - self.base,
                granted: size + self.base,
                left: Balance::Is(self.base),
                admits: size,
            }
        } else if usable <= self.base {
            Pending {
                node,
                usable: 0,
                granted: size,
                left: Balance::Grows(0),
                admits: size,
            }
        } else {
            // Charged to no node.
            self.log.entries.push(Entry::Answered { node, key: KEY });
            self.admit(node, size);
            return None;
        };
        Some(pending)
    }

    /// The background draw, up to the point at which it would write.
    pub(crate) fn prefetch(&mut self, node: usize) -> Option<Pending> {
        let usable = self.nodes[node].usable;
        if usable < self.base {
            return None;
        }
        self.log.entries.push(Entry::Asked { node, key: KEY });
        let part = self.base * 2 / 5;
        Some(Pending {
            node,
            usable: usable - part,
            granted: part,
            left: Balance::Grows(part),
            admits: 0,
        })
    }

    /// Writes what was decided, over whatever stands there.
    pub(crate) fn write(&mut self, pending: Pending) {
        let Pending {
            node,
            usable,
            granted,
            left,
            admits,
        } = pending;
        self.store.usable = usable;
        self.log.entries.push(Entry::Answered { node, key: KEY });
        let entry = self.committed(usable, granted, 0, false);
        self.log.entries.push(entry);
        self.log.entries.push(Entry::Granted {
            node,
            key: KEY,
            window: self.store.window,
            amount: granted as u64,
        });
        self.nodes[node].left = match left {
            Balance::Is(left) => left,
            Balance::Grows(by) => self.nodes[node].left + by,
        };
        if admits > 0 {
            self.admit(node, admits);
        }
    }

    /// Whether a node believes that the window is over.
    pub(crate) fn wants_refresh(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        self.now + node.ahead >= node.refreshed_at + WINDOW
    }

    /// The first of the two writes that begin a window.
    pub(crate) fn mark_refreshed(&mut self) {
        self.store.refreshed_at = self.now;
        self.store.window = self.window();
    }

    /// The second one.
    pub(crate) fn refill(&mut self) {
        self.store.usable = self.total;
        let entry = self.committed(self.total, 0, 0, true);
        self.log.entries.push(entry);
    }

    /// Notes the demand of all nodes in the present window.
    pub(crate) fn demanded(&mut self, amount: i64) {
        self.log.entries.push(Entry::Demanded {
            key: KEY,
            window: self.window(),
            amount: amount as u64,
        });
    }
}
