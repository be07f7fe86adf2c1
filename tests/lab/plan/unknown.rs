//! Facts that a log cannot carry are named in the report, and not guessed.

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::{backend, config, plan, plan_with, steady, stormy};
use crate::sidecar::{Said, Sidecar};
use crate::support::{array, ask};

/// The log of one storm with refusals, for all tests that change a log.
pub(super) async fn storm() -> &'static str {
    static STORM: OnceCell<String> = OnceCell::const_new();
    STORM.get_or_init(|| stormy("in_turn", 30)).await
}

/// The identity is unknown, for this reason.
fn is_unknown(said: &Said, why: &str) {
    assert!(said.out.contains(why), "{}{}", said.out, said.err);
    assert_eq!(said.code, Some(2), "{}", said.out);
}

fn same() -> String {
    config("127.0.0.1:1", "in_turn", 40, 1000)
}

#[tokio::test]
async fn a_log_without_the_start_and_a_checkpoint_has_no_config() {
    let lines = storm().await.lines();
    let rest = lines.skip_while(|line| !line.contains(r#""event":"start""#));
    let rest: Vec<_> = rest.skip(1).collect();
    let said = plan(&rest.join("\n")).await;
    is_unknown(&said, "neither the start of the process nor a checkpoint");
}

#[tokio::test]
async fn a_log_without_lines_for_a_replay_names_the_option() {
    let log = storm().await;
    let is_for_replay = |line: &&str| line.contains(r#""target":"replay""#);
    let access: Vec<&str> = log.lines().filter(|line| !is_for_replay(line)).collect();
    is_unknown(&plan(&access.join("\n")).await, "set log.replay = true");
    let replay: Vec<&str> = log
        .lines()
        .filter(|line| !line.contains(r#""target":"access""#))
        .collect();
    assert_eq!(plan(&replay.join("\n")).await.code, Some(0));
}

#[tokio::test]
async fn lost_lines_are_counted_and_no_plan_is_made() {
    let lost =
        r#"{"level":"WARN","message":"replay lines lost, stderr is read too slowly","lines":41}"#;
    let log = format!("{}\n{lost}\n", storm().await);
    is_unknown(&plan(&log).await, "41 lines were lost");
    let said = plan_with(&log, &same(), &["--config=new.toml"]).await;
    is_unknown(&said, "41 lines were lost");
    assert!(said.out.contains("no plan is made"), "{}", said.out);
}

#[tokio::test]
async fn logs_that_overlap_are_read_once() {
    let log = storm().await;
    let said = plan(&format!("{log}\n{log}")).await;
    assert_eq!(said.code, Some(0), "{}", said.out);
}

#[tokio::test]
async fn damaged_lines_are_counted() {
    let other = r#""started_us":18446744073709551615,"x":1"#;
    let damaged = storm().await.replacen(r#""started_us":1"#, other, 3);
    let said = plan(&damaged).await;
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    let cut = storm()
        .await
        .replacen(r#""steps":[["asked","#, r#""steps":[["asked_not","#, 2);
    is_unknown(&plan(&cut).await, "2 lines cannot be read");
    assert_eq!(plan("no log").await.code, Some(2));
}

#[tokio::test]
async fn a_call_with_more_postponements_than_a_line_shows_cannot_be_replayed() {
    let log = storm().await;
    let has_asked = |line: &&str| line.contains(r#"["asked""#) && line.contains(r#","polling"]"#);
    let line = log.lines().find(has_asked);
    let line = line.expect("a call asked");
    let (before, after) = line.split_once(r#","polling"]"#).unwrap_or((line, ""));
    let (_, asked) = before.rsplit_once(',').expect("an instant");
    let many = format!(r#",["postponed",{asked},1]"#).repeat(256);
    let many = format!(r#"{before},"polling"]{many}{after}"#);
    let said = plan(&log.replace(line, &many)).await;
    is_unknown(&said, "more often than a line shows");
}

#[tokio::test]
async fn quotas_of_a_log_that_begins_in_the_middle_are_unknown() {
    let answer = r#"{"target":"gate","event":"quota_nodes","nodes":1,"#;
    let log = storm()
        .await
        .replace(r#""event":"start""#, r#""event":"checkpoint""#);
    let started = log.split_once(r#""started_us":"#).expect("it has one").1;
    let started = &started[..started.find([',', '}']).expect("it ends")];
    let log = format!("{log}\n{answer}\"started_us\":{started},\"at_ns\":1}}");
    is_unknown(&plan(&log).await, "the log begins in the middle");
}

#[tokio::test]
async fn more_calls_at_once_than_the_log_ever_had_are_no_evidence() {
    let log = steady().await;
    // One of 3 is kept for another class, so at most 2 at once were ever seen.
    let larger = "outstanding = 30";
    let new = same().replace("outstanding = 3", larger);
    let said = plan_with(&log, &new, &["--config=new.toml", "--clients=open"]).await;
    let told = "no evidence beyond 2 at once";
    assert!(said.out.contains(told), "{}", said.out);
    let said = plan_with(&log, &same(), &["--config=new.toml", "--clients=open"]).await;
    assert!(!said.out.contains("no evidence"), "{}", said.out);
    assert!(said.out.contains("limit outstanding"), "{}", said.out);
}

#[tokio::test]
async fn refused_calls_that_came_again_are_counted() {
    // All calls of the storm come from one client, so some come after it was refused.
    let told = "came again within a minute";
    let arguments = ["--config=new.toml", "--clients=open"];
    let said = plan_with(storm().await, &same(), &arguments).await;
    assert!(said.out.contains(told), "{}{}", said.out, said.err);
    let said = plan_with(&steady().await, &same(), &arguments).await;
    assert!(!said.out.contains("came again"), "{}", said.out);
}

#[tokio::test]
async fn a_log_that_begins_in_the_middle_is_judged_from_the_first_idle_moment() {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let new = config(&address, "jitter", 40, 30);
    let sidecar = Sidecar::start(&new.replace("access = true", "access = false")).await;
    let addr = sidecar.listener("test").await;
    let storm = async |calls: usize| {
        let mut storm = JoinSet::new();
        for number in 0..calls {
            let call = array("guest_get_info", &format!("U{number}"));
            storm.spawn(async move { ask(addr, call).await });
        }
        storm.join_all().await;
    };
    storm(20).await;
    // The log begins between two storms, as if it had been rotated there.
    sidecar.reload(&new).await;
    let checkpoint = [r#""event":"checkpoint""#];
    sidecar.log().wait_from(0, &checkpoint).await;
    storm(10).await;
    // Until the windows and the bucket are full again, nothing can be judged.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    storm(25).await;
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let rotated = lines
        .iter()
        .skip_while(|line| !line.contains(checkpoint[0]));
    let lines: Vec<String> = rotated.cloned().collect();
    let log = lines.join("\n");
    assert!(
        log.contains(r#""again":true"#),
        "no bucket is repeated: {log}"
    );
    let said = plan(&log).await;
    let whole = said
        .out
        .contains("identity: the same decision in all 25 lines");
    assert!(
        whole && said.out.contains("10 calls are left out"),
        "{}{}",
        said.out,
        said.err
    );
    assert_eq!(said.code, Some(0));

    // Without a checkpoint, the config is not known.
    let no_checkpoint: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| !line.contains(r#""event":"checkpoint""#))
        .collect();
    let said = plan(&no_checkpoint.join("\n")).await;
    assert!(
        said.out
            .contains("neither the start of the process nor a checkpoint"),
        "{}",
        said.out
    );
    assert_eq!(said.code, Some(2));
}

#[tokio::test]
async fn calls_that_end_after_the_last_line_are_left_out() {
    let log = stormy("jitter", 200).await;
    assert!(log.contains(r#""event":"end""#));
    // As if it had been read while the last calls ran.
    let ends: Vec<usize> = log
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(r#""target":"replay""#))
        .map(|(nth, _)| nth)
        .collect();
    let last = ends[ends.len() - 15];
    let cut: Vec<&str> = log.lines().take(last).collect();
    let said = plan(&cut.join("\n")).await;
    assert!(said.out.contains("the log has no end"), "{}", said.out);
    assert!(
        said.out.contains("identity: the same decision in all"),
        "{}",
        said.out
    );
    assert_eq!(said.code, Some(0), "{}", said.out);
}
