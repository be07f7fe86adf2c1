//! The watches of one session, and how they end at the server.

use std::collections::HashMap;

use tokio::sync::oneshot;

/// Ends when something happens at this path, or the connection is lost.
pub(super) struct NodeWatch {
    pub(super) path: String,
    pub(super) changed: oneshot::Sender<()>,
}

/// The watches that wait, by their path.
#[derive(Default)]
pub(super) struct Watches {
    paths: HashMap<String, Vec<oneshot::Sender<()>>>,
    /// The number of paths at which those are dropped whose caller is gone.
    full: usize,
}

impl Watches {
    /// Adds a watch. Returns the paths at which no caller waits any more.
    pub(super) fn add(&mut self, watch: NodeWatch) -> Vec<String> {
        let mut left = Vec::new();
        if self.paths.len() >= self.full.max(64) {
            self.paths.retain(|path, waiting| {
                waiting.retain(|changed| !changed.is_closed());
                if waiting.is_empty() {
                    left.push(path.clone());
                }
                !waiting.is_empty()
            });
            self.full = 2 * self.paths.len();
        }
        let path = watch.path.clone();
        self.paths
            .entry(watch.path)
            .or_default()
            .push(watch.changed);
        left.retain(|left| *left != path);
        // Its caller may have left meanwhile.
        if self.leave(&path) {
            left.push(path);
        }
        left
    }

    /// A caller waits no more at a path. Returns whether it was the last one.
    pub(super) fn leave(&mut self, path: &str) -> bool {
        let Some(waiting) = self.paths.get_mut(path) else {
            return false;
        };
        waiting.retain(|changed| !changed.is_closed());
        let is_last = waiting.is_empty();
        if is_last {
            self.paths.remove(path);
        }
        is_last
    }

    /// Wakes all at a path, whatever happened there: each reads it again.
    pub(super) fn changed(&mut self, path: &str) {
        for changed in self.paths.remove(path).into_iter().flatten() {
            let _ = changed.send(());
        }
    }
}

/// Whether the servers can end a watch. Old servers of other makes close the connection instead.
#[derive(Clone, Copy, Default)]
pub(super) struct Removals {
    were_answered: bool,
    /// Connections that were lost before an answer.
    lost: u32,
}

impl Removals {
    /// After this number of lost connections without a single answer, no watch is ended.
    const LOST_MAX: u32 = 3;

    pub(super) fn are_known(self) -> bool {
        self.were_answered || self.lost < Self::LOST_MAX
    }

    pub(super) fn answered(&mut self) {
        self.were_answered = true;
    }

    /// A connection was lost before an answer.
    pub(super) fn lost(&mut self) {
        self.lost += 1;
    }
}
