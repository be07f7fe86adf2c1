//! Facts that a server of Redis reports of itself: whether it can hold quotas at all, and what it evicts.
//!
//! `HELLO` names the mode and the role to every client that may log in. A node of a cluster has only a part
//! of the keys, and a replica does not write; both would half work.

use std::collections::HashMap;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::super::{Cause, StoreError};
use super::connect::Server;
use super::{CallKind, OF_SERVER, told};

/// The keys that a Redis may remove when its memory is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryPolicy {
    /// `maxmemory-policy`.
    policy: Box<str>,
    /// `maxmemory`; 0 for no bound.
    max: u64,
    /// Keys that it has evicted since it started.
    pub(super) evicted: u64,
}

impl MemoryPolicy {
    /// Why records are not safe in it, and what to do; `None` if they are.
    ///
    /// Records expire some time after their last use, so the policies that evict only keys that expire evict
    /// them too.
    pub(super) fn danger(&self) -> Option<String> {
        let Self { policy, max, .. } = self;
        (*max > 0 && **policy != *"noeviction").then(|| {
            format!(
                "maxmemory-policy {policy} with maxmemory {max}: Redis may evict a record, and its window is then \
                 granted again: set maxmemory-policy noeviction, or give quotas a Redis of their own"
            )
        })
    }
}

/// Fails if a server cannot hold quotas: `None` if it is the server of the config, its address if sentinels
/// named it.
pub(super) async fn check(
    mut redis: MultiplexedConnection,
    server: &Server,
) -> Result<(), StoreError> {
    let mut hello = redis::cmd("HELLO");
    let said: Result<HashMap<String, Value>, _> = hello.arg("3").query_async(&mut redis).await;
    let said = said.map_err(|error| told(error, CallKind::Read, OF_SERVER))?;
    let word = |name: &str| match said.get(name) {
        Some(Value::BulkString(word)) => String::from_utf8_lossy(word).into_owned(),
        Some(Value::SimpleString(word)) => word.clone(),
        Some(Value::VerbatimString { text, .. }) => text.clone(),
        _ => String::new(),
    };
    match (&*word("mode"), &*word("role")) {
        ("cluster", _) => Err(part_of_a_cluster(&server.to_string())),
        ("sentinel", _) => Err(StoreError::Unsuitable(Cause::from(format!(
            "{server} is a sentinel: set sentinel in [quota_store] to the name of the primary that it watches"
        )))),
        (_, "replica" | "slave") => Err(StoreError::Unavailable(Cause::from(format!(
            "{server} is a replica now and does not write: it is looked up and asked again; if it stays so, name \
             the primary in [quota_store], or its sentinels"
        )))),
        _ => Ok(()),
    }
}

/// The error for a node of a cluster, with the cure.
pub(super) fn part_of_a_cluster(server: &str) -> StoreError {
    StoreError::Unsuitable(Cause::from(format!(
        "{server} is a node of a Redis Cluster (cluster-enabled yes), which holds only a part of the keys: name a \
         Redis without a cluster in [quota_store], alone or with sentinels"
    )))
}

/// Asks for the policy of a full memory; an error if the user may not ask.
pub(super) async fn memory(redis: &mut MultiplexedConnection) -> Result<MemoryPolicy, StoreError> {
    let mut text = String::new();
    for section in ["memory", "stats"] {
        let mut info = redis::cmd("INFO");
        let told: Result<String, _> = info.arg(section).query_async(redis).await;
        text += &told.map_err(|error| super::told(error, CallKind::Read, OF_SERVER))?;
    }
    Ok(read(&text))
}

fn read(text: &str) -> MemoryPolicy {
    let of = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let number = |name| of(name).and_then(|it| it.trim().parse().ok());
    MemoryPolicy {
        policy: of("maxmemory_policy").unwrap_or("noeviction").trim().into(),
        max: number("maxmemory").unwrap_or(0),
        evicted: number("evicted_keys").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: &str, max: u64, is_safe: bool) {
        let text = format!(
            "# Memory\r\nmaxmemory:{max}\r\nmaxmemory_human:4.00M\r\nmaxmemory_policy:{policy}\r\n\
             # Stats\r\nevicted_keys:7\r\n"
        );
        let memory = read(&text);
        assert_eq!(memory.evicted, 7);
        assert_eq!(memory.danger().is_none(), is_safe, "{memory:?}");
    }

    #[test]
    fn only_a_redis_that_evicts_nothing_keeps_records_safe() {
        check("noeviction", 4 << 20, true);
        check("allkeys-lru", 0, true);
        check("allkeys-lru", 4 << 20, false);
        // Records expire.
        check("volatile-ttl", 4 << 20, false);
    }
}
