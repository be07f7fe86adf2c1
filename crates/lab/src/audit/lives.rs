//! Groups the processes that are lives of one sidecar: it was restarted, and the backend saw the calls of both.
//!
//! Processes that write one log, one after the other, are taken for one sidecar. If they were there at once, the log is
//! of several sidecars, and each is judged by itself.

use std::collections::HashMap;

/// The processes so far.
#[derive(Debug, Default)]
pub(super) struct Lives {
    processes: Vec<ProcessLife>,
    /// The latest process of each log.
    latest: HashMap<String, usize>,
    /// Whether a sidecar has processes that were there at once, by the first of its processes.
    mixed: Vec<usize>,
}

#[derive(Debug)]
struct ProcessLife {
    /// Where its clock has its zero, which is some time before its start.   µs since the epoch
    zero: u64,
    /// When the first of its calls came in, and when its latest call left.   µs since the epoch
    earliest: u64,
    latest: u64,
    /// The first process of the same sidecar, and the next one.
    first: usize,
    next: Option<usize>,
}

impl Lives {
    /// A process begins, with the next number, in this log, with a call that came in then.
    pub(super) fn begin(&mut self, log: &str, zero: u64, came: u64) {
        let number = self.processes.len();
        let before = self.latest.insert(whole(log).to_owned(), number);
        let before = before.filter(|&before| self.processes[before].zero < zero);
        let first = before.map_or(number, |before| {
            self.processes[before].next = Some(number);
            self.processes[before].first
        });
        self.processes.push(ProcessLife {
            zero,
            earliest: came,
            latest: zero,
            first,
            next: None,
        });
        if let Some(before) = before {
            self.check(before);
        }
    }

    /// A call of this process came in.
    pub(super) fn came(&mut self, number: usize, at: u64) {
        let process = &mut self.processes[number];
        if at >= process.earliest {
            return;
        }
        process.earliest = at;
        if let Some(before) = self.processes.iter().position(|it| it.next == Some(number)) {
            self.check(before);
        }
    }

    /// A call of this process left.
    pub(super) fn left(&mut self, number: usize, at: u64) {
        let process = &mut self.processes[number];
        process.latest = process.latest.max(at);
        self.check(number);
    }

    /// The first process of the same sidecar.
    pub(super) fn first(&self, number: usize) -> usize {
        self.processes[number].first
    }

    /// The processes of each sidecar that was restarted, and of no other.
    pub(super) fn restarted(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let all = self.processes.iter().enumerate();
        let firsts = all.filter(|(number, it)| {
            it.first == *number && it.next.is_some() && !self.mixed.contains(number)
        });
        firsts.map(|(first, _)| {
            let next = |number: &usize| self.processes[*number].next;
            (first, std::iter::successors(Some(first), next).collect())
        })
    }

    /// Whether this process was still there when the next one began.
    fn check(&mut self, number: usize) {
        let process = &self.processes[number];
        let begun = process.next.map(|next| self.processes[next].earliest);
        if begun.is_some_and(|begun| process.latest > begun) && !self.mixed.contains(&process.first)
        {
            self.mixed.push(process.first);
        }
    }
}

/// The name of a log without what rotation adds to it: `access.log` of `access.log.2.gz`.
fn whole(log: &str) -> &str {
    let mut name = log;
    for packed in [".gz", ".zst", ".xz", ".bz2"] {
        name = name.strip_suffix(packed).unwrap_or(name);
    }
    let digits = name.trim_end_matches(|it: char| it.is_ascii_digit());
    match digits.strip_suffix(['.', '-']) {
        Some(whole) if digits.len() < name.len() => whole,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarted(lives: &Lives) -> Vec<Vec<usize>> {
        lives.restarted().map(|(_, all)| all).collect()
    }

    #[test]
    fn processes_of_one_log_one_after_the_other_are_one_sidecar() {
        let mut lives = Lives::default();
        lives.begin("a.log.1", 10, 100);
        lives.begin("b.log", 15, 105);
        lives.left(0, 190);
        lives.begin("a.log", 110, 200);
        lives.left(2, 210);
        lives.left(1, 300);
        lives.begin("a.log-20261128.gz", 210, 300);
        assert_eq!(restarted(&lives), [[0, 2, 3]]);
        assert_eq!([0, 1, 2, 3].map(|it| lives.first(it)), [0, 1, 0, 0]);
    }

    #[test]
    fn processes_that_were_there_at_once_are_several_sidecars() {
        let two = || {
            let mut lives = Lives::default();
            lives.begin("all.log", 10, 100);
            lives.left(0, 150);
            lives.begin("all.log", 110, 200);
            assert_eq!(restarted(&lives), [[0, 1]]);
            lives
        };
        let mut lives = two();
        lives.left(0, 201);
        assert_eq!(restarted(&lives), Vec::<Vec<usize>>::new());
        // A call that came in before has its line later.
        let mut lives = two();
        lives.came(1, 150);
        assert_eq!(restarted(&lives), [[0, 1]]);
        lives.came(1, 149);
        assert_eq!(restarted(&lives), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn what_rotation_adds_to_the_name_of_a_log_is_left_out() {
        let check = |name, expected| assert_eq!(whole(name), expected);
        check("access.log", "access.log");
        check("access.log.12", "access.log");
        check("access.log-20261128.gz", "access.log");
        check("nova2", "nova2");
        check("-", "-");
    }
}
