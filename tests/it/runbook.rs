//! The commands, paths and metrics of docs/how-to/runbook.md are those that there are.

use std::collections::BTreeSet;

use tokio::process::Command;

use crate::sidecar::{Sidecar, run, with_programs};
use crate::support::{Scripted, listens};

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Everything between backquotes.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The words of a command, as a shell reads these.
fn words(command: &str) -> Vec<String> {
    let parts = command.split('"').enumerate();
    let words = parts.flat_map(|(nth, part)| match nth % 2 {
        0 => part.split_whitespace().map(ToOwned::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

#[tokio::test]
async fn every_command_of_the_runbook_works_at_a_real_sidecar() {
    let backend = Scripted::in_both_dialects().await;
    let sections = "[limits]\nper_window = \"total:20\"\n[admin]\nbind = \"127.0.0.1:0\"";
    let text = listens("", &format!("socket = \"{}\"", backend.addr), sections);
    let sidecar = Sidecar::start(&text).await;
    let admin = sidecar.admin.to_string();
    let config = sidecar.config_path().to_str().expect("text");
    let runbook = read("docs/how-to/runbook.md");
    let commands = quoted(&runbook);
    let commands = commands
        .iter()
        .filter_map(|it| it.strip_prefix("tidegate "));
    let mut tried = 0;
    for command in commands {
        let mut arguments = words(command);
        for argument in &mut arguments {
            match &**argument {
                "FILE" => config.clone_into(argument),
                "ID" => "0123456789abcdef".clone_into(argument),
                _ => {}
            }
        }
        let name = arguments[0].clone();
        let whole = ["callers", "healthcheck", "limits", "resume"];
        // The name of a command that needs more.
        if arguments.len() == 1 && !whole.contains(&&*name) {
            arguments.push("--help".to_owned());
        }
        if name == "healthcheck" {
            arguments.extend(["--admin".to_owned(), admin.clone()]);
        }
        let mut tidegate = Command::new(with_programs());
        tidegate.args(&arguments).env("TIDEGATE_ADMIN", &admin);
        tidegate.env_remove("TIDEGATE_TOKEN_FILE");
        let said = run(&mut tidegate).await;
        let unknown = "there is no call 0123456789abcdef";
        match &*name {
            "explain" if said.code == Some(1) => {
                assert!(said.err.contains(unknown), "{}", said.err);
            }
            _ => assert_eq!(said.code, Some(0), "tidegate {command}: {}", said.err),
        }
        tried += 1;
    }
    assert!(tried >= 12, "only {tried} commands were found");
    let asked = quoted(&runbook);
    let asked = asked.iter().filter(|it| it.starts_with("curl "));
    for command in asked {
        let (_, path) = command.split_once(":9180").expect("an address");
        let (status, body) = sidecar.get(path).await;
        assert_eq!(status, 200, "{command}: {body}");
    }
}

#[test]
fn every_metric_and_option_file_of_the_runbook_is_there() {
    let runbook = read("docs/how-to/runbook.md");
    let metrics = read("docs/reference/metrics.md");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = runbook.split(|c| !is_name(c));
    for name in names.filter(|word| word.starts_with("tidegate_")) {
        assert!(metrics.contains(&format!("\n| `{name}` |")), "{name}");
    }
    for link in runbook.split("](").skip(1) {
        let link = link.split(')').next().expect("it ends");
        let file = link.split('#').next().expect("a file");
        if !file.is_empty() {
            read(&format!("docs/how-to/{file}"));
        }
    }
}
