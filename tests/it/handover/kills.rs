//! Kills of either process of an upgrade, at points that lie close together.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lab::backend::BackendStatistics;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::versions::beside_the_ledger;
use super::{Upgraded, is_alive, socket_backend, stand_in};
use crate::sidecar::TIDEGATE;
use crate::support::{PATIENCE, array, read_all};

/// The time between two points.
const STEP: Duration = Duration::from_millis(4);

const PER_SECOND: u32 = 30;
const AT_ONCE: u32 = 10;

/// The process that has the right to admit calls, or had it last.
fn serving(dir: &Path) -> u32 {
    let text = std::fs::read_to_string(beside_the_ledger(dir, "lock")).unwrap_or_default();
    let pid = text.lines().next().and_then(|pid| pid.parse().ok());
    pid.unwrap_or_default()
}

fn kill(pid: u32) {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args(["-KILL", &pid.to_string()]).status();
    sent.expect("there is a kill command");
}

fn take_over(dir: &Path) -> Child {
    let config = dir.join("config.toml");
    let mut command = Command::new(TIDEGATE);
    command
        .env("TIDEGATE_RUNTIME_DIR", config.with_extension("run"))
        .args(["serve", "--take-over", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command.spawn().expect("the program runs")
}

/// Starts this number of new processes in a storm, and kills them and the old ones in turn, each a step later than the one
/// before. Returns what the backend saw.
pub(super) async fn kills(points: u32) -> BackendStatistics {
    let backend = stand_in(Duration::from_millis(50)).await;
    let lines = format!(
        "{}\nafter_crash = \"1s\"",
        socket_backend(&backend.socket_addr())
    );
    let limits = format!(
        "per_window = \"total:{PER_SECOND}\"\noutstanding = {AT_ONCE}\nwindow_guard = \"200ms\""
    );
    let first = Upgraded::start(&lines, &limits, "[server]\ndrain_timeout = \"1s\"\n").await;
    let (addr, dir) = (first.addr, Arc::clone(&first.dir));
    let mut clients = JoinSet::new();
    for client in 0..40 {
        clients.spawn(async move {
            loop {
                let called = async {
                    let mut stream = TcpStream::connect(addr).await.ok()?;
                    let call = array("guest_get_info", &format!("G{client}"));
                    tokio::io::AsyncWriteExt::write_all(&mut stream, call.as_bytes())
                        .await
                        .ok()?;
                    let mut answer = Vec::new();
                    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer)
                        .await
                        .ok()
                };
                if called.await.is_none() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    let mut children = Vec::new();
    for point in 0..points {
        let old = serving(dir.path());
        let new = take_over(dir.path());
        let pid = new.id().expect("it was just started");
        children.push(new);
        // The moment is what is tried.
        tokio::time::sleep(STEP * (point / 2)).await;
        let victim = if point % 2 == 0 { pid } else { old };
        kill(victim);
        let alone = async {
            loop {
                for child in &mut children {
                    let _ = child.try_wait();
                }
                let mut others = children.iter().filter_map(Child::id);
                let serving = serving(dir.path());
                if runs(victim) {
                    tokio::task::yield_now().await;
                    continue;
                }
                // The first process of all is another child of this test.
                let first_drains = serving != first.sidecar.pid && runs(first.sidecar.pid);
                if runs(serving) && !first_drains && others.all(|pid| pid == serving) {
                    break;
                }
                if !runs(serving) && !runs(pid) && !runs(old) {
                    // The old one was killed before the new one had asked it, and the new one gave up.
                    children.push(take_over(dir.path()));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let alone = tokio::time::timeout(PATIENCE, alone).await;
        alone.unwrap_or_else(|_| panic!("point {point}: more than one process, or none"));
        let before = backend.report().calls;
        let more = backend.wait_until(|report| report.calls > before + 3);
        let more = tokio::time::timeout(PATIENCE, more).await;
        more.unwrap_or_else(|_| panic!("point {point}: calls go on"));
    }
    drop(clients);
    let report = backend.report();
    // It still answers.
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    let call = array("guest_list", "LAST");
    tokio::io::AsyncWriteExt::write_all(&mut stream, call.as_bytes())
        .await
        .expect("it reads");
    let answer = read_all(&mut stream).await;
    assert!(answer.contains("overallRC"), "{answer}");
    report
}

/// Whether this process runs, and is not only waiting for its parent.
fn runs(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    is_alive(pid) && state.is_ok_and(|state| !state.contains(") Z "))
}

/// Whether the backend saw no more than the limits.
pub(super) fn holds(report: &BackendStatistics) -> bool {
    report.densest_second <= PER_SECOND && report.peak_in_flight <= AT_ONCE
}

#[tokio::test]
async fn a_kill_of_either_process_at_any_point_exceeds_no_limit() {
    let report = kills(8).await;
    assert!(holds(&report), "{report}");
}
