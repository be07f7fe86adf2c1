//! The commands at the socket file, where the kernel says which user asks; and what a config says
//! about where to ask.

use std::os::unix::net::UnixStream;

use serde_json::Value;
use tokio::process::Command;

use crate::sidecar::{Said, Sidecar, run, with_programs};
use crate::support::{Scripted, json as parsed, listens};

async fn tidegate(arguments: &[&str]) -> Said {
    let mut command = Command::new(with_programs());
    command.args(arguments);
    command.env_remove("TIDEGATE_TOKEN_FILE");
    command.env_remove("TIDEGATE_ADMIN");
    run(&mut command).await
}

/// The output of a command that must succeed, as JSON.
async fn told(arguments: &[&str]) -> Value {
    let said = tidegate(&[arguments, &["--json"]].concat()).await;
    assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.err);
    parsed(&said.out)
}

/// The name of this user for the sidecar.
fn own_uid() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

#[tokio::test]
async fn at_the_socket_file_every_command_works_without_a_token_and_acts_are_by_uid() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = format!("unix:{}", dir.path().join("admin.sock").display());
    let backend = Scripted::in_both_dialects().await;
    let sections = format!(
        "[limits]\nper_window = \"total:20\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         token = \"secret\"\nsocket = \"{file}\""
    );
    let text = listens("", &format!("socket = \"{}\"", backend.addr), &sections);
    let sidecar = Sidecar::start(&text).await;
    sidecar.log().wait(&["admin socket file is up"]).await;
    let at = ["--admin", &file];
    assert!(told(&[&["callers"], &at[..]].concat()).await["callers"].is_array());
    assert!(told(&[&["limits"], &at[..]].concat()).await["limits"].is_array());
    let health = tidegate(&[&["healthcheck"], &at[..]].concat()).await;
    assert_eq!(health.code, Some(0), "{}", health.err);

    let pause = ["pause", "--hold", "60s", "--why", "re-IPL"];
    let paused = told(&[&pause[..], &at].concat()).await;
    assert_eq!(paused["author"], own_uid());
    sidecar
        .log()
        .wait(&["the backend is paused", "re-IPL", &own_uid()])
        .await;
    let now = told(&[&["top"], &at[..]].concat()).await;
    assert_eq!(now["pause"]["author"], own_uid());
    let screen = tidegate(&[&["top", "--once"], &at[..]].concat()).await;
    let by = format!(": re-IPL (by {})", own_uid());
    assert!(screen.out.contains(&by), "{}", screen.out);
    let limit = ["lower", "total", "5", "--for", "30m"];
    assert_eq!(told(&[&limit[..], &at].concat()).await["author"], own_uid());
    let undone = tidegate(&[&["restore", "total"], &at[..]].concat()).await;
    assert_eq!(undone.out, "Limit total has its own value again.\n");
    let unknown = tidegate(&[&["restore", "totl"], &at[..]].concat()).await;
    assert_eq!(unknown.code, Some(1), "{}", unknown.out);
    assert!(
        unknown.err.contains("there is no limit totl"),
        "{}",
        unknown.err
    );
    let half = tidegate(&[&["lower", "total", "5"], &at[..]].concat()).await;
    assert_eq!(half.code, Some(2), "{}", half.out);
    assert!(half.err.contains("--for"), "{}", half.err);
    let resumed = told(&[&["resume", "--ramp", "0s"], &at[..]].concat()).await;
    assert_eq!(resumed["state"], "running", "{resumed}");

    // A config leads to the file, without its token; another address asks for one.
    let config = sidecar.config_path().to_str().expect("text");
    let paused = told(&["pause", "--hold", "60s", "--config", config]).await;
    assert_eq!(paused["author"], own_uid());
    let admin = sidecar.admin.to_string();
    let refused = tidegate(&["resume", "--admin", &admin]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    assert!(refused.err.contains("--token-file"), "{}", refused.err);
    let nothing = dir.path().join("nothing.sock");
    let gone = format!("unix:{}", nothing.display());
    let said = tidegate(&["limits", "--admin", &gone]).await;
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("admin.socket"), "{}", said.err);
}

#[tokio::test]
async fn a_config_whose_socket_file_is_gone_leads_to_its_address_with_its_first_named_token() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("admin.sock");
    let free = crate::support::closed_port();
    let backend = Scripted::in_both_dialects().await;
    let sections = format!(
        "[limits]\nper_window = \"total:20\"\n[admin]\nbind = \"{free}\"\n\
         tokens = [\"ann:first\", \"bob:second\"]\nsocket = \"unix:{}\"",
        path.display()
    );
    let text = listens("", &format!("socket = \"{}\"", backend.addr), &sections);
    let sidecar = Sidecar::start(&text).await;
    sidecar.log().wait(&["admin socket file is up"]).await;
    std::fs::remove_file(&path).expect("it is there");
    assert!(UnixStream::connect(&path).is_err());
    let config = sidecar.config_path().to_str().expect("text");
    let paused = told(&["pause", "--hold", "60s", "--config", config]).await;
    assert_eq!(paused["author"], "token ann");
}
