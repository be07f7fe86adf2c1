//! Ids of tasks, which show their process.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use super::MissingTask;

/// The id of a task: 128 bits from a generator that the operating system seeded, and the mark of
/// its process. As text it has 56 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    boot: u64,
    pub(super) random: u128,
    check: u32,
}

const BOOT_DIGITS: usize = 16;
const RANDOM_DIGITS: usize = 32;
const CHECK_DIGITS: usize = 8;

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}{:032x}{:08x}",
            self.boot, self.random, self.check
        )
    }
}

/// A text that is not a [`TaskId`]: no task ever had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task's id has 56 hexadecimal digits, in lower case")]
pub struct NoTaskId;

impl FromStr for TaskId {
    type Err = NoTaskId;

    fn from_str(text: &str) -> Result<Self, NoTaskId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let right_length = text.len() == BOOT_DIGITS + RANDOM_DIGITS + CHECK_DIGITS;
        if !right_length || !text.bytes().all(is_digit) {
            return Err(NoTaskId);
        }
        let (boot, rest) = text.split_at(BOOT_DIGITS);
        let (random, check) = rest.split_at(RANDOM_DIGITS);
        Ok(Self {
            boot: u64::from_str_radix(boot, 16).map_err(|_| NoTaskId)?,
            random: u128::from_str_radix(random, 16).map_err(|_| NoTaskId)?,
            check: u32::from_str_radix(check, 16).map_err(|_| NoTaskId)?,
        })
    }
}

/// Makes the ids of one process, and recognises them without storing any.
#[derive(Debug)]
pub(super) struct Ids {
    boot: u64,
    check: RandomState,
}

impl Ids {
    /// The ids of this process.
    pub(super) fn new(boot: u64) -> Self {
        Self {
            boot,
            check: RandomState::new(),
        }
    }

    pub(super) fn make(&self, random: u128) -> TaskId {
        TaskId {
            boot: self.boot,
            random,
            check: self.check.hash_one(random) as u32,
        }
    }

    /// Why a task with this id cannot be here, if it cannot.
    pub(super) fn check(&self, id: TaskId) -> Result<(), MissingTask> {
        if id.boot == 0 {
            // No process has this number.
            Err(MissingTask::Unknown)
        } else if id.boot != self.boot {
            Err(MissingTask::Gone)
        } else if id != self.make(id.random) {
            Err(MissingTask::Unknown)
        } else {
            Ok(())
        }
    }
}
