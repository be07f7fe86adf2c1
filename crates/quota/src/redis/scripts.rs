//! Scripts that run in Redis. Each answers with the time of the server.

use std::sync::LazyLock;

use redis::Script;

/// Answers with the time, and the version and the record at the key; both are empty if there are
/// none.
const READ: &str = r"
local time = redis.call('TIME')
local found = redis.call('HMGET', KEYS[1], 'version', 'record')
return {time[1], time[2], found[1] or '', found[2] or ''}
";

/// Writes the record `ARGV[2]` over the version `ARGV[1]` (none: an empty text), has it expire at the
/// millisecond `ARGV[4]`, and tells the channel `ARGV[3]`. Answers with the time and the new version,
/// or else as a read. Behind that and an empty text it says why the record cannot expire, if so.
///
/// The versions of a key that is made again begin with the time, so that each is unique. An expiry
/// or a publish without permission changes nothing of the write.
const SWAP: &str = r"
local time = redis.call('TIME')
local found = redis.call('HMGET', KEYS[1], 'version', 'record')
local version = found[1] or ''
if version ~= ARGV[1] then return {time[1], time[2], version, found[2] or ''} end
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
version = string.format('%.0f', math.max(now, (tonumber(version) or 0) + 1))
redis.call('HSET', KEYS[1], 'version', version, 'record', ARGV[2])
local expires = redis.pcall('PEXPIREAT', KEYS[1], ARGV[4])
redis.pcall('PUBLISH', ARGV[3], '')
if type(expires) == 'table' then return {time[1], time[2], version, '', expires.err or ''} end
return {time[1], time[2], version}
";

/// Counts the member `ARGV[1]` as live for another `ARGV[2]` microseconds. Answers with the time
/// and the number of members.
const BEAT: &str = r"
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
return {time[1], time[2], tostring(redis.call('ZCARD', KEYS[1]))}
";

/// Reads, writes a record with the text `ARGV[1]` that expires in a minute, and removes it. A server
/// that does not allow to remove it keeps it for that long.
const TRY_WRITE: &str = r"
local time = redis.call('TIME')
redis.call('HMGET', KEYS[1], 'version', 'record')
redis.call('HSET', KEYS[1], 'version', '0', 'record', ARGV[1])
local expires = redis.pcall('PEXPIREAT', KEYS[1], string.format('%.0f', (tonumber(time[1]) + 60) * 1000))
redis.pcall('DEL', KEYS[1])
if type(expires) == 'table' then return expires end
return {time[1], time[2]}
";

/// Adds the member `ARGV[1]` as one that is dead already, so that no node counts it, and removes it.
const TRY_JOIN: &str = r"
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '0')
redis.call('ZADD', KEYS[1], '0', ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZCARD', KEYS[1])
return {time[1], time[2]}
";

pub(super) static READ_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(READ));
pub(super) static SWAP_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SWAP));
pub(super) static BEAT_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(BEAT));
pub(super) static TRY_WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TRY_WRITE));
pub(super) static TRY_JOIN_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TRY_JOIN));
