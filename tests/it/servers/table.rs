//! The long form: writes docs/reports/servers.md.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::farm::{Farm, Seen, storm};
use super::{servers, unshared};
use crate::http_corpus::peers::{started, version};
use crate::sidecar::Sidecar;
use crate::support::closed_port;

/// How long a call takes.
const CALL: Duration = Duration::from_secs(2);
const DEATHS: usize = 20;
/// Calls that each of the others answers before a server returns, and that one before the next dies.
const CALLS: u64 = 8;
const PAGE: &str = "docs/reports/servers.md";

/// HAProxy with a limit for each server, health checks, and calls that go to another server if a connect fails.
fn haproxy(listens: SocketAddr, farm: &Farm) -> String {
    let mut config = format!(
        "defaults\n  mode http\n  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n  timeout queue 60s\n  \
         option redispatch 1\n  retries 3\n  default-server check inter 200ms fall 1 rise 1 maxconn 4 observe layer4 error-limit 1 on-error mark-down\n\
         frontend f\n  bind {listens}\n  default_backend b\nbackend b\n  balance leastconn\n"
    );
    for (name, addr) in farm.addrs() {
        config += &format!("  server {name} {addr}\n");
    }
    config
}

fn row(name: &str, seen: &Seen, took: Duration) -> String {
    let Seen {
        most_at_once,
        answered,
        failed,
        lost,
        cut,
        used,
    } = seen;
    format!(
        "| {name} | {most_at_once} | {answered} | {failed} | {lost} | {cut} | {:.1} % | {:.0} s |\n",
        used * 100.0,
        took.as_secs_f64()
    )
}

#[tokio::test]
#[ignore = "minutes, and it writes a report: make servers"]
async fn the_table() {
    let mut rows = String::new();
    for pick in ["least", "first"] {
        let farm = Farm::start(3, CALL).await;
        let each: Vec<_> = farm
            .addrs()
            .map(|(name, addr)| (name, addr, "outstanding = 4"))
            .collect();
        let lines = servers(&format!("pick = \"{pick}\""), &each);
        let sidecar = Sidecar::start(&unshared(&lines)).await;
        let began = Instant::now();
        let seen = storm(farm, sidecar.listener("test").await, (DEATHS, CALLS)).await;
        rows += &row(&format!("Tidegate, `{pick}`"), &seen, began.elapsed());
    }
    let farm = Farm::start(3, CALL).await;
    let (listens, dir) = (closed_port(), tempfile::tempdir().expect("a folder"));
    let path = dir.path().join("haproxy.cfg");
    fs::write(&path, haproxy(listens, &farm)).expect("it is ours");
    let mut command = Command::new("haproxy");
    command.arg("-f").arg(&path);
    let running = started(command, &[listens.port()]).await;
    let began = Instant::now();
    let seen = storm(farm, listens, (DEATHS, CALLS)).await;
    let name = format!(
        "HAProxy {}, `maxconn 4`, checks each 200 ms",
        version("haproxy", "-v").await
    );
    rows += &row(&name, &seen, began.elapsed());
    drop(running);
    print!("{rows}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(&page).expect("the page is there");
    let head = "|---|---|---|---|---|---|---|---|\n";
    let (before, after) = text.split_once(head).expect("a table");
    let rest = after.split_once("\n\n").map_or("", |(_, rest)| rest);
    fs::write(&page, format!("{before}{head}{rows}\n{rest}")).expect("it is ours");
}
