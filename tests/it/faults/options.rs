//! Every option of the example is changed by a reload while 200 calls wait: it takes effect, or the
//! reload says that it needs a restart, and no call that waits is lost.
//!
//! The options are those that the reader asks for, so that a new one is tried, or named here as
//! missing, as soon as it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tidegate::config;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::backend::{Backend, Recorder};
use super::client::{Client, Outcome, SMALL, Way, Wire};
use super::run::{Tags, own_ip};
use super::subject::{Subject, sum};
use crate::certificates::Files;
use crate::sidecar::TIDEGATE;

/// Calls that wait.
const WAITING: usize = 200;

/// A config with as many compatible options as possible. The window admits one call an hour, so
/// later calls wait.
fn base(backend: &str, state: &Path, files: &Path) -> String {
    let (state, files) = (state.display(), files.display());
    format!(
        r#"
[server]
threads = 1
max_connections = 16384
drain_timeout = "30s"
drain_streams = "5s"
[[listen]]
name = "test"
bind = "127.0.0.1:0"
unix_mode = "0660"
protocol = "auto"
cancel_on_eof = true
proxy_protocol = "off"
user_from = "peer"
tickets = "explicit"
client_timeout = "1h"
class_header = false
[listen.tls]
cert = "{files}/tls.crt"
key = "{files}/tls.key"
client_ca = "{files}/clients.crt"
client_auth = "optional"
required = false
[client]
handshake_timeout = "5s"
request_timeout = "30s"
idle_timeout = "75s"
write_timeout = "30s"
body_timeout = "10m"
body_min_rate = "1KiB"
max_request_bytes = "4KiB"
buffer_bytes = "64KiB"
[forwarded]
x_forwarded_for = "auto"
x_forwarded_proto = "auto"
x_forwarded_host = "auto"
forwarded = "auto"
x_real_ip = "auto"
[callers]
trusted_proxies = []
identify = ["user", "originator", "ip", "user_agent", "listener"]
ipv6_prefix = 64
auto_register = 100
auto_register_per_s = 10
state_file = "{state}"
[[caller]]
label = "the poller"
match = {{ user = "poller" }}
groups = ["monitoring"]
rate_limit = "poller"
weight = 1
[[bucket]]
name = "poller"
burst = 30
fill = 3
on_excess = "delay"
order = "fair"
settle = true
max_wait = "ordinary"
mode = "enforce"
[[pace]]
name = "pace"
rate = 1000
ratio = 1.1
applies_to = "function"
function = "guest_start"
[[quota]]
name = "hourly"
applies_to = "user"
total = 10000
base = 100
refresh_window = "2s"
totals = {{ alice = 50000 }}
namespace = "hourly"
prefetch = 20
ask = 40
relinquish_every = "400ms"
relinquish_above = 2
draw_timeout = "200ms"
when_store_away = "safe"
safe = 50
[costs]
default = 1
unit_seconds = 0.1
settle = false
functions = {{ guest_list = 2 }}
[profiles]
unlimited = {{ exempt = true }}
interactive = {{ burst = 200, fill = 20 }}
poller = {{ burst = 30, fill = 3 }}
batch = {{ burst = 600, fill = 5 }}
quarantine = {{ burst = 5, fill = 0.2 }}
[backend]
kind = "zvm"
socket = "{backend}"
http = "http://{backend}"
tcp = "{backend}"
connect_timeout = "2s"
response_timeout = "1h"
max_reply_bytes = "16MiB"
reply_buffer_bytes = "1MiB"
pool_max_idle = 64
pool_idle_timeout = "4s"
pool_max_age = "1m"
[queue]
capacity = 4096
workers = 64
max_unlimited = 64
when_full = "wait"
postpone = "jitter"
postpone_jitter = ["50ms", "100ms"]
[limits]
window = "3600s"
per_window = "total:1"
outstanding = 10
max_wait = "7300s"
window_shape = "sliding"
window_stamp = "sent"
window_guard = "5ms"
exempt = []
[classes]
header = "x-tidegate-class"
promote_for = "10s"
[[class]]
name = "long"
weight = 2
max_wait = "2h"
functions = ["guest_get_info"]
effort = "minutes"
outstanding_max = 4
beside_total = false
reserve_outstanding = 1
[coalesce]
functions = []
fresh_for = "0s"
max_entries = 1024
max_bytes = "16MiB"
[tasks]
enabled = false
max_tasks = 1024
max_tasks_per_caller = 256
max_bytes = "64MiB"
max_bytes_per_caller = "16MiB"
keep_for = "10m"
[coordinate]
servers = ["127.0.0.1:1"]
id = "proxy-1"
expected_sidecars = 3
request_timeout = "2s"
minimum_interval = "5s"
[[coordinate.limit]]
limit = "rate_limit:poller"
resource = "zvm1/poller"
safe = 1
[quota_store]
engine = "redis"
servers = ["rediss://127.0.0.1:1"]
user = "tidegate"
password = "secret"
root = "tidegate:"
key = "{files}/tls.key"
cert = "{files}/tls.crt"
server_name = "redis.example"
ca = "{files}/clients.crt"
session_timeout = "4s"
expected_sidecars = 3
keys_max = 10000
[admin]
bind = "127.0.0.1:0"
[log]
format = "json"
level = "info"
access = true
[trace]
otlp = "http://127.0.0.1:9"
service = "tidegate"
queue = 64
timeout = "1s"
[[route]]
method = "GET"
path = "/reports/{{id}}"
function = "report_get"
"#
    )
}

/// Changes that do not follow from the kind of value: the option, the removed lines, and the
/// lines in their place. § separates several places.
const CHANGES: &[(&str, &str, &str)] = &[
    ("listen.name", "name = \"test\"", "name = \"other\""),
    (
        "listen.bind",
        "bind = \"127.0.0.1:0\"\nunix_mode",
        "bind = \"127.0.0.2:0\"\nunix_mode",
    ),
    (
        "listen.unix_mode",
        "bind = \"127.0.0.1:0\"\nunix_mode = \"0660\"",
        "bind = \"127.0.0.1:0\"\nunix_mode = \"0600\"",
    ),
    (
        "listen.class",
        "class_header = false",
        "class = \"polling\"\nclass_header = false",
    ),
    (
        "listen.user_from",
        "user_from = \"peer\"",
        "user_from = \"basic\"",
    ),
    ("jobs.max", "[limits]\n", "[jobs]\nmax = 7\n[limits]\n"),
    (
        "jobs.ask_after",
        "[limits]\n",
        "[jobs]\nask_after = \"77s\"\n[limits]\n",
    ),
    (
        "jobs.dialect",
        "[limits]\n",
        "[jobs]\ndialect = true\n[limits]\n",
    ),
    (
        "route.job",
        "function = \"report_get\"\n",
        "function = \"report_get\"\njob = \"operation-location\"\n",
    ),
    (
        "listen.tickets",
        "tickets = \"explicit\"",
        "tickets = \"implicit\"",
    ),
    (
        "listen.client_timeout",
        "client_timeout = \"1h\"",
        "client_timeout = \"50m\"",
    ),
    (
        "listen.protocol",
        "protocol = \"auto\"§required = false",
        "protocol = \"http\"§required = true",
    ),
    (
        "listen.proxy_protocol",
        "proxy_protocol = \"off\"§trusted_proxies = []",
        "proxy_protocol = \"required\"§trusted_proxies = [\"127.0.0.1/32\"]",
    ),
    (
        "class.beside_total",
        "beside_total = false\nreserve_outstanding = 1",
        "beside_total = true",
    ),
    ("listen.tls.cert", "tls.crt\"", "again.crt\""),
    ("listen.tls.key", "tls.key\"", "again.key\""),
    (
        "listen.tls.client_ca",
        "clients.crt\"",
        "again.clients.crt\"",
    ),
    (
        "listen.tls.client_auth",
        "client_auth = \"optional\"\nrequired = false",
        "client_auth = \"required\"\nrequired = true",
    ),
    (
        "limits.ledger_lost",
        "[limits]\n",
        "[limits]\nledger_lost = \"assume_full\"\n",
    ),
    (
        "backend.server.name",
        "http = \"http://§[queue]",
        "# http = \"http://§[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\n[queue]",
    ),
    (
        "backend.server.http",
        "http = \"http://§[queue]",
        "# http = \"http://§[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\n[queue]",
    ),
    (
        "backend.server.outstanding",
        "http = \"http://§[queue]",
        "# http = \"http://§[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\noutstanding = 3\n[queue]",
    ),
    (
        "backend.server.per_window",
        "http = \"http://§[queue]",
        "# http = \"http://§[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\nper_window = 3\n[queue]",
    ),
    (
        "backend.pick",
        "http = \"http://§[queue]",
        "# http = \"http://§pick = \"first\"\n[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\n[queue]",
    ),
    (
        "backend.sticky_by",
        "http = \"http://§[queue]",
        "# http = \"http://§pick = \"sticky\"\nsticky_by = \"caller\"\n[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\n[queue]",
    ),
    (
        "backend.sticky_wait",
        "http = \"http://§[queue]",
        "# http = \"http://§sticky_wait = \"77s\"\n[[backend.server]]\nname = \"a\"\nhttp = \"http://127.0.0.9:1\"\n[queue]",
    ),
    (
        "backend.on_client_left",
        "[backend]\n",
        "[backend]\non_client_left = \"close\"\n",
    ),
    (
        "client.max_request_fields",
        "[client]\n",
        "[client]\nmax_request_fields = 200\n",
    ),
    (
        "callers.trusted_proxies",
        "trusted_proxies = []",
        "trusted_proxies = [\"10.0.0.0/8\"]",
    ),
    ("callers.identify", "identify = [\"user\", ", "identify = ["),
    ("callers.state_file", "state.json", "other.json"),
    (
        "caller.label",
        "label = \"the poller\"",
        "label = \"a poller\"",
    ),
    (
        "caller.match",
        "{ user = \"poller\" }",
        "{ user = \"pollers\" }",
    ),
    ("caller.groups", "[\"monitoring\"]", "[\"polling\"]"),
    (
        "caller.rate_limit",
        "rate_limit = \"poller\"\nweight",
        "weight",
    ),
    (
        "bucket.name",
        "name = \"poller\"§rate_limit = \"poller\"§limit = \"rate_limit:poller\"",
        "name = \"pollers\"§rate_limit = \"pollers\"§limit = \"rate_limit:pollers\"",
    ),
    ("pace.name", "name = \"pace\"", "name = \"a_pace\""),
    ("quota.name", "name = \"hourly\"", "name = \"daily\""),
    (
        "bucket.profile",
        "burst = 30\nfill = 3\non_excess",
        "profile = \"batch\"\non_excess",
    ),
    (
        "pace.rate",
        "rate = 1000\nratio = 1.1",
        "rate = \"900,1.2\"",
    ),
    (
        "pace.applies_to",
        "applies_to = \"function\"\nfunction = \"guest_start\"",
        "applies_to = \"callers\"",
    ),
    (
        "pace.function",
        "function = \"guest_start\"",
        "function = \"guest_stop\"",
    ),
    ("quota.totals", "{ alice = 50000 }", "{ alice = 50001 }"),
    (
        "quota.namespace",
        "namespace = \"hourly\"",
        "namespace = \"daily\"",
    ),
    (
        "pace.on_excess",
        "applies_to = \"function\"\nfunction = \"guest_start\"",
        "on_excess = \"reject\"",
    ),
    (
        "pace.order",
        "applies_to = \"function\"\nfunction = \"guest_start\"",
        "order = \"fifo\"",
    ),
    (
        "pace.settle",
        "applies_to = \"function\"\nfunction = \"guest_start\"",
        "settle = true",
    ),
    (
        "pace.max_wait",
        "applies_to = \"function\"\nfunction = \"guest_start\"",
        "max_wait = \"none\"",
    ),
    (
        "quota.function",
        "applies_to = \"user\"§totals = { alice = 50000 }\n",
        "applies_to = \"function\"\nfunction = \"guest_list\"§",
    ),
    ("pace.ratio", "ratio = 1.1", "ratio = 1.2"),
    (
        "quota.when_store_away",
        "when_store_away = \"safe\"\nsafe = 50",
        "when_store_away = \"deny\"",
    ),
    (
        "bucket.on_excess",
        "on_excess = \"delay\"",
        "on_excess = \"reject\"",
    ),
    ("bucket.mode", "mode = \"enforce\"", "mode = \"observe\""),
    (
        "costs.unit_seconds",
        "unit_seconds = 0.1",
        "unit_seconds = 0.2",
    ),
    (
        "costs.functions",
        "functions = { guest_list = 2 }",
        "functions = { guest_list = 3 }",
    ),
    (
        "profiles.unlimited",
        "unlimited = { exempt = true }",
        "unlimited = { burst = 9, fill = 9 }",
    ),
    (
        "profiles.interactive",
        "burst = 200, fill = 20",
        "burst = 201, fill = 20",
    ),
    (
        "profiles.poller",
        "poller = { burst = 30, fill = 3 }",
        "poller = { burst = 31, fill = 3 }",
    ),
    (
        "profiles.batch",
        "burst = 600, fill = 5",
        "burst = 601, fill = 5",
    ),
    (
        "profiles.quarantine",
        "burst = 5, fill = 0.2",
        "burst = 6, fill = 0.2",
    ),
    (
        // The functions that limits name are those of the table, which only "zvm" has.
        "backend.kind",
        "kind = \"zvm\"\nsocket§outstanding = 10",
        "kind = \"http\"\nsocket§outstanding = 10\nallow_unknown = true",
    ),
    (
        "backend.dialect",
        "kind = \"zvm\"\nsocket§outstanding = 10",
        "kind = \"http\"\ndialect = \"mcp\"\nsocket§outstanding = 10\nallow_unknown = true",
    ),
    (
        "backend.http",
        "http = \"http://",
        "http = \"http://127.0.0.9:1\" # ",
    ),
    (
        "backend.tls.ca",
        "http = \"http://§[queue]\ncapacity",
        "http = \"https://§[backend.tls]\nca = \"FILES/clients.crt\"\n[queue]\ncapacity",
    ),
    (
        "backend.tls.cert",
        "http = \"http://§[queue]\ncapacity",
        "http = \"https://§[backend.tls]\nca = \"FILES/clients.crt\"\ncert = \"FILES/tls.crt\"\nkey = \"FILES/tls.key\"\n[queue]\ncapacity",
    ),
    (
        "backend.tls.key",
        "http = \"http://§[queue]\ncapacity",
        "http = \"https://§[backend.tls]\nca = \"FILES/clients.crt\"\ncert = \"FILES/again.crt\"\nkey = \"FILES/again.key\"\n[queue]\ncapacity",
    ),
    (
        "backend.tls.server_name",
        "http = \"http://§[queue]\ncapacity",
        "http = \"https://§[backend.tls]\nca = \"FILES/clients.crt\"\nserver_name = \"sdk.example\"\n[queue]\ncapacity",
    ),
    (
        "backend.tls.accept_any_certificate",
        "http = \"http://§[queue]\ncapacity",
        "http = \"https://§[backend.tls]\naccept_any_certificate = true\n[queue]\ncapacity",
    ),
    (
        "limits.window_shape",
        "window_shape = \"sliding\"",
        "window_shape = \"fixed\"",
    ),
    ("limits.per_window", "\"total:1\"", "\"total:2\""),
    ("limits.exempt", "exempt = []", "exempt = [\"guest_list\"]"),
    (
        "queue.postpone",
        "postpone = \"jitter\"\npostpone_jitter = [\"50ms\", \"100ms\"]",
        "postpone = \"in_turn\"",
    ),
    (
        "queue.early_refusal",
        "postpone = \"jitter\"\npostpone_jitter = [\"50ms\", \"100ms\"]",
        "postpone = \"in_turn\"\nearly_refusal = true",
    ),
    (
        "queue.postpone_jitter",
        "[\"50ms\", \"100ms\"]",
        "[\"60ms\", \"110ms\"]",
    ),
    (
        "classes.header",
        "header = \"x-tidegate-class\"",
        "header = \"x-class\"",
    ),
    ("class.name", "name = \"long\"", "name = \"slow\""),
    ("class.max_wait", "max_wait = \"2h\"", "max_wait = \"none\""),
    (
        "class.functions",
        "functions = [\"guest_get_info\"]",
        "functions = [\"guest_start\"]",
    ),
    (
        "class.per_window",
        "outstanding_max = 4",
        "per_window = 1\noutstanding_max = 4",
    ),
    ("class.reserve_per_window", "\"total:1\"", "\"total:3\""),
    (
        "coalesce.functions",
        "[coalesce]\nfunctions = []",
        "[coalesce]\nfunctions = [\"host_get_info\"]",
    ),
    (
        "coordinate.servers",
        "[\"127.0.0.1:1\"]",
        "[\"127.0.0.1:2\"]",
    ),
    ("coordinate.id", "id = \"proxy-1\"", "id = \"proxy-2\""),
    (
        "coordinate.ca",
        "[coordinate]\n",
        "[coordinate]\nca = \"FILES/clients.crt\"\n",
    ),
    (
        "coordinate.cert",
        "[coordinate]\n",
        "[coordinate]\nca = \"FILES/clients.crt\"\ncert = \"FILES/tls.crt\"\nkey = \"FILES/tls.key\"\n",
    ),
    (
        "coordinate.key",
        "[coordinate]\n",
        "[coordinate]\nca = \"FILES/clients.crt\"\ncert = \"FILES/again.crt\"\nkey = \"FILES/again.key\"\n",
    ),
    (
        "coordinate.server_name",
        "[coordinate]\n",
        "[coordinate]\nca = \"FILES/clients.crt\"\nserver_name = \"leases.example\"\n",
    ),
    (
        "coordinate.limit.limit",
        "limit = \"rate_limit:poller\"",
        "limit = \"outstanding\"",
    ),
    (
        "coordinate.limit.resource",
        "resource = \"zvm1/poller\"",
        "resource = \"zvm1/pollers\"",
    ),
    (
        "quota_store.engine",
        "engine = \"redis\"\nservers = [\"rediss://127.0.0.1:1\"]\nuser = \"tidegate\"\npassword = \"secret\"\nroot = \"tidegate:\"",
        "engine = \"etcd\"\nservers = [\"https://127.0.0.1:1\"]",
    ),
    (
        "quota_store.servers",
        "rediss://127.0.0.1:1",
        "rediss://127.0.0.1:2",
    ),
    (
        "quota_store.user",
        "user = \"tidegate\"",
        "user = \"sidecar\"",
    ),
    (
        "quota_store.password",
        "password = \"secret\"",
        "password = \"public\"",
    ),
    (
        "quota_store.root",
        "root = \"tidegate:\"",
        "root = \"other:\"",
    ),
    (
        "quota_store.ca",
        "clients.crt\"\nsession_timeout",
        "again.clients.crt\"\nsession_timeout",
    ),
    (
        "quota_store.cert",
        "tls.crt\"\nserver_name",
        "again.crt\"\nserver_name",
    ),
    (
        "quota_store.key",
        "tls.key\"\ncert = ",
        "again.key\"\ncert = ",
    ),
    (
        "quota_store.server_name",
        "server_name = \"redis.example\"",
        "server_name = \"other.example\"",
    ),
    (
        "quota_store.sentinel",
        "servers = [\"rediss://127.0.0.1:1\"]",
        "servers = [\"rediss://127.0.0.1:1\"]\nsentinel = \"mymaster\"",
    ),
    (
        "quota_store.sentinel_user",
        "servers = [\"rediss://127.0.0.1:1\"]",
        "servers = [\"rediss://127.0.0.1:1\"]\nsentinel = \"mymaster\"\nsentinel_user = \"tidegate\"\nsentinel_password = \"secret\"",
    ),
    (
        "quota_store.sentinel_password",
        "servers = [\"rediss://127.0.0.1:1\"]",
        "servers = [\"rediss://127.0.0.1:1\"]\nsentinel = \"mymaster\"\nsentinel_password = \"secret\"",
    ),
    (
        "admin.bind",
        "[admin]\nbind = \"127.0.0.1:0\"",
        "[admin]\nbind = \"127.0.0.2:0\"",
    ),
    (
        "admin.allowed_hosts",
        "[admin]\n",
        "[admin]\nallowed_hosts = [\"tidegate.example\"]\n",
    ),
    (
        "admin.token",
        "[admin]\n",
        "[admin]\ntoken = \"0123456789abcdef0123456789abcdef\"\n",
    ),
    (
        "admin.tokens",
        "[admin]\n",
        "[admin]\ntokens = [\"ann:0123456789abcdef0123456789abcdef\"]\n",
    ),
    (
        "admin.socket",
        "[admin]\n",
        "[admin]\nsocket = \"unix:FILES/admin.sock\"\n",
    ),
    ("log.format", "format = \"json\"", "format = \"text\""),
    ("log.level", "level = \"info\"", "level = \"debug\""),
    (
        "trace.otlp",
        "http://127.0.0.1:9\"\nservice",
        "http://127.0.0.2:9\"\nservice",
    ),
    (
        "trace.service",
        "service = \"tidegate\"",
        "service = \"other\"",
    ),
    ("trace.queue", "queue = 64", "queue = 65"),
    ("trace.timeout", "timeout = \"1s\"", "timeout = \"2s\""),
    ("route.method", "method = \"GET\"", "method = \"POST\""),
    (
        "route.path",
        "path = \"/reports/{id}\"",
        "path = \"/report/{id}\"",
    ),
    (
        "route.function",
        "function = \"report_get\"",
        "function = \"report\"",
    ),
    (
        "route.function_from",
        "function = \"report_get\"",
        "function = \"report_get\"\nfunction_from = { header = \"x-operation\" }",
    ),
    (
        "route.caller_from",
        "function = \"report_get\"",
        "function = \"report_get\"\ncaller_from = { header = \"x-key\" }",
    ),
    (
        "route.sessions",
        "function = \"report_get\"",
        "function = \"report_get\"\ncaller_from = { header = \"x-key\" }\nsessions = \"xapi\"",
    ),
    (
        "route.batch",
        "function = \"report_get\"",
        "function = \"report_get\"\nfunction_from = { json = \"/method\" }\nbatch = \"refuse\"",
    ),
    (
        "route.unreadable",
        "function = \"report_get\"",
        "function = \"report_get\"\nfunction_from = { json = \"/method\" }\nunreadable = \"refuse\"",
    ),
    (
        "route.cost_from",
        "function = \"report_get\"",
        "function = \"report_get\"\ncost_from = { header = \"x-cost\" }",
    ),
    (
        "route.reserve",
        "function = \"report_get\"",
        "function = \"report_get\"\nreserve = { header = \"x-most\", else = 3 }",
    ),
];

/// The option whose value the page never shows. `quota::stores` has a test that it takes effect.
const SHOWN_AS_STARS: &str = "quota_store.password";

/// Another value of the same kind; none if this one does not suggest any.
fn another(value: &str, allowed: &str) -> Option<String> {
    match value {
        "true" => return Some("false".to_owned()),
        "false" => return Some("true".to_owned()),
        _ => {}
    }
    let words = allowed.split('|').map(str::trim);
    let words: Vec<&str> = words.filter(|word| word.starts_with('"')).collect();
    if words.len() > 1 {
        let other = words.iter().find(|word| **word != value)?;
        return Some((*other).to_owned());
    }
    let (quote, bare) = match value.strip_prefix('"') {
        Some(rest) => ("\"", rest.strip_suffix('"')?),
        None => ("", value),
    };
    let digits = bare.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = bare[..digits].parse().ok()?;
    // A step that every range has room for.
    Some(format!("{quote}{}{}{quote}", number + 1, &bare[digits..]))
}

/// The configs to reload, each with the option in which it differs from the base.
fn changed(base: &str, files: &Path) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut configs, mut missing) = (BTreeMap::new(), Vec::new());
    for (path, allowed) in config::catalogue().allowed() {
        if let Some((_, from, to)) = CHANGES.iter().find(|it| it.0 == path) {
            let mut config = base.to_owned();
            for (from, to) in from.split('§').zip(to.split('§')) {
                assert!(base.contains(from), "{path}: {from}");
                let to = to.replace("FILES", &files.display().to_string());
                config = config.replacen(from, &to, 1);
            }
            configs.insert(path, config);
            continue;
        }
        let (section, key) = path.rsplit_once('.').expect("an option has a section");
        let mut now = "";
        let found = base.lines().enumerate().find_map(|(at, line)| {
            if let Some(header) = line.strip_prefix('[') {
                now = header.trim_matches(['[', ']']);
            }
            let (name, value) = line.split_once(" = ")?;
            (now == section && name == key).then_some((at, value))
        });
        let another = found.and_then(|(at, value)| Some((at, another(value, &allowed)?)));
        let (at, value) = match another {
            Some(it) => it,
            // One that the base has not: the section's first line makes room for it.
            None => match absent(base, section, &allowed) {
                Some(it) => it,
                None => {
                    missing.push(format!("{path} ({allowed})"));
                    continue;
                }
            },
        };
        let mut lines: Vec<String> = base.lines().map(str::to_owned).collect();
        let line = format!("{key} = {value}");
        match found {
            Some(_) => lines[at] = line,
            None => lines.insert(at + 1, line),
        }
        configs.insert(path, lines.join("\n"));
    }
    (configs, missing)
}

/// Where an option goes that the base has not, and a value of it.
fn absent(base: &str, section: &str, allowed: &str) -> Option<(usize, String)> {
    let header = |line: &str| {
        line.strip_prefix('[')
            .is_some_and(|it| it.trim_matches(['[', ']']) == section)
    };
    let at = base.lines().position(header)?;
    let words = allowed.split('|').map(str::trim);
    let words: Vec<&str> = words.filter(|word| word.starts_with('"')).collect();
    // As in "calls, 1 to 9", "0B to 1GiB" or "duration, 1ms to 1h".
    let range: Vec<&str> = allowed.split([' ', ',']).collect();
    let to = range.iter().position(|word| *word == "to");
    let least = to.and_then(|to| range.get(to.checked_sub(1)?)).copied();
    let least = least.unwrap_or_default();
    let value = match allowed {
        "true or false" => "true".to_owned(),
        _ if allowed.starts_with("a list of") && allowed.ends_with("names") => {
            "[\"x-other.example\"]".to_owned()
        }
        // The default stands first.
        _ if words.len() > 1 => words.last()?.to_string(),
        _ if least.ends_with('B') => "\"77KiB\"".to_owned(),
        _ if least.ends_with(['s', 'm', 'h']) => "\"77s\"".to_owned(),
        _ => least.parse::<u64>().ok()?.max(7).to_string(),
    };
    Some((at, value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reloaded_option_takes_effect_or_is_reported_and_no_waiting_call_is_lost() {
    let certificates = Files::new();
    let files = certificates.dir.path();
    for name in ["tls.crt", "tls.key", "clients.crt"] {
        let again = name
            .replace("tls", "again")
            .replace("clients", "again.clients");
        std::fs::copy(files.join(name), files.join(again)).expect("there is room");
    }
    let recorder = Recorder::default();
    let backend = Backend::start(own_ip(), 0, recorder.clone()).await;
    let addr = backend.addr.to_string();
    let mut text = String::new();
    let mut command = Command::new(TIDEGATE);
    command.arg("serve");
    let subject = Subject::start(command, |folder| {
        text = base(&addr, &folder.join("state.json"), files);
        text.clone()
    });
    let mut subject = subject.await.unwrap_or_else(|how| panic!("{how}"));
    let (configs, missing) = changed(&text, files);
    assert!(
        missing.is_empty(),
        "name in CHANGES how these change: {missing:#?}"
    );

    let (tags, mut calls) = (Tags::default(), JoinSet::new());
    let (_tell, never) = watch::channel(false);
    for number in 0..=WAITING {
        let wire = if number % 4 == 3 {
            Wire::Socket
        } else {
            Wire::Http
        };
        let mut client = Client::new(subject.addr, wire, Way::Stays, never.clone());
        client.patience = Duration::from_secs(300);
        let tags = tags.clone();
        calls.spawn(async move { client.call(tags.next(), tags.next(), SMALL).await });
    }
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let metrics = subject.metrics().await.unwrap_or_default();
        if sum(&metrics, "tidegate_queue_depth") >= WAITING as f64 {
            break;
        }
        assert!(Instant::now() < until, "{:?}", subject.lines());
        sleep(Duration::from_millis(10)).await;
    }

    let effective = async |subject: &Subject| {
        let page = subject
            .ask("GET", "/v1/config", "")
            .await
            .expect("an answer");
        page.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    let first = effective(&subject).await;
    let (mut wrong, mut restart) = (Vec::new(), BTreeSet::new());
    for (path, config) in &configs {
        let from = subject.lines().len();
        let taken = "config reloaded";
        let refusals = |subject: &Subject| {
            subject.logged("old config stays") + subject.logged("the old one stays")
        };
        let before = (subject.logged(taken), refusals(&subject));
        subject.write_config(config);
        subject.signal("HUP");
        let until = Instant::now() + Duration::from_secs(20);
        while subject.logged(taken) == before.0 && refusals(&subject) == before.1 {
            assert!(Instant::now() < until, "{path}: no word of the reload");
            sleep(Duration::from_millis(2)).await;
        }
        let lines = subject.lines()[from..].to_vec();
        if subject.logged(taken) == before.0 {
            let errors = lines.iter().filter(|line| line.contains("\"ERROR\""));
            let errors: Vec<&String> = errors.collect();
            wrong.push(format!("{path} is refused: {errors:?}"));
            continue;
        }
        let waits = lines.iter().any(|it| it.contains("only after a restart"));
        if waits {
            // Those of sentinels come with `sentinel`, which needs a restart.
            let named = format!("\"{path}\"");
            if !path.starts_with("quota_store.sentinel_")
                || lines.iter().any(|it| it.contains(&named))
            {
                restart.insert(path.clone());
            }
        } else if path != SHOWN_AS_STARS && effective(&subject).await == first {
            wrong.push(format!(
                "{path} neither takes effect nor says that it needs a restart"
            ));
        }
        // To change it back needs a restart, too, and is not to be taken for the next one's. Under another name it would be
        // new.
        if waits || path.ends_with(".name") {
            let before = subject.logged(taken);
            subject.write_config(&text);
            subject.signal("HUP");
            if let Err(how) = subject.logs(taken, before).await {
                wrong.push(how);
            }
        }
    }
    let before = subject.logged("config reloaded");
    subject.write_config(&text.replace("\"total:1\"", "\"total:100000\""));
    subject.signal("HUP");
    if let Err(how) = subject.logs("config reloaded", before).await {
        wrong.push(how);
    }
    let released = Instant::now();
    let (mut lost, mut last) = (Vec::new(), Vec::new());
    while let Some(attempt) = calls.join_next().await {
        let attempt = attempt.expect("a client does not panic");
        if attempt.outcome != Outcome::Served {
            lost.push(format!("{}: {:?}", attempt.tag, attempt.outcome));
        }
        last.push((
            attempt.ended.saturating_duration_since(released),
            attempt.tag,
        ));
    }
    let last = last.iter().max().expect("calls waited");
    assert!(
        last.0 < Duration::from_secs(20),
        "{last:?} after the limit was lifted"
    );
    let arrived: BTreeSet<_> = recorder.all().iter().map(|it| it.tag).collect();
    println!(
        "{} options changed, {} need a restart",
        configs.len(),
        restart.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(lost.is_empty(), "{lost:#?}");
    assert_eq!(arrived.len(), WAITING + 1);
    let expected: BTreeSet<String> = config::catalogue().restart().into_iter().collect();
    assert_eq!(restart, expected, "what needs a restart");
    subject.signal("TERM");
    assert!(subject.ended(Duration::from_secs(40)).await.is_some());
}
