//! The page of the command line is made from its definition: every command, with its arguments, their
//! defaults and their variables.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::generated::check;

const HEAD: &str = "# The command line

Every command with its arguments. Made from the definitions in the code: change an argument there, and run `make docs`. Each
command prints the same with `--help`, and `man tidegate-check` is the page of `tidegate check`.

Exit codes: 0 is good, 1 is bad (a mistake in the config, a limit that was exceeded, a sidecar that is not ready), 2 is wrong usage.
";

/// A cell of a table, on one line.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('<', "&lt;");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How an argument is written: `-c, --config <FILE>`.
fn form(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<_> = names.iter().map(|name| format!("<{name}>")).collect();
    let more = if arg.get_num_args().is_some_and(|it| it.max_values() > 1) {
        "…"
    } else {
        ""
    };
    let value = match takes {
        true if names.is_empty() => format!("<{}>{more}", arg.get_id()),
        true => names.join(" ") + more,
        false => String::new(),
    };
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let names: Vec<_> = [short, long].into_iter().flatten().collect();
    match names.is_empty() {
        true => value,
        false => format!("{} {value}", names.join(", "))
            .trim_end()
            .to_owned(),
    }
}

fn arguments(command: &Command, page: &mut String) {
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let list: Vec<_> = command.get_arguments().filter(shown).collect();
    if list.is_empty() {
        return;
    }
    page.push_str("\n| argument | what it is | default |\n|---|---|---|\n");
    for arg in list {
        let about = arg.get_long_help().or(arg.get_help());
        let mut about = cell(&about.map(ToString::to_string).unwrap_or_default());
        let words = arg.get_possible_values();
        let words: Vec<_> = words
            .iter()
            .filter(|it| !it.is_hide_set())
            .map(|it| format!("`{}`", it.get_name()))
            .collect();
        if !words.is_empty() && arg.get_action().takes_values() {
            let _ = write!(about, ": {}", words.join(", "));
        }
        if let Some(variable) = arg.get_env() {
            let _ = write!(about, " (`{}`)", variable.to_string_lossy());
        }
        let default: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|it| it.to_string_lossy())
            .collect();
        let default = match (default.join(" "), arg.is_required_set()) {
            (_, true) => "required".to_owned(),
            (none, false) if none.is_empty() || !arg.get_action().takes_values() => String::new(),
            (default, false) => format!("`{default}`"),
        };
        let _ = writeln!(
            page,
            "| `{}` | {about} | {default} |",
            form(arg).replace('|', "\\|")
        );
    }
}

/// A command, and those below it.
fn describe(command: &Command, path: &str, page: &mut String) {
    let mut below: Vec<_> = command
        .get_subcommands()
        .filter(|it| !it.is_hide_set() && it.get_name() != "help")
        .collect();
    below.sort_by_key(|it| it.get_display_order());
    if path.contains(' ') || !below.is_empty() {
        let about = command.get_long_about().or(command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## `{path}`\n\n{}\n", about.replace('<', "&lt;"));
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").trim().to_owned();
        let _ = write!(page, "\n```text\n{usage}\n```\n");
        arguments(command, page);
    }
    for command in below {
        describe(command, &format!("{path} {}", command.get_name()), page);
    }
}

#[test]
fn the_page_of_the_command_line_is_made_from_the_definitions() {
    let mut page = HEAD.to_owned();
    for mut program in [
        tidegate::cli::definition(),
        tidegate_lab::cli::definition(),
        tidegate_lease_server::cli::definition(),
    ] {
        program.build();
        let name = program.get_name().to_owned();
        describe(&program, &name, &mut page);
    }
    check("docs/reference/command-line.md", &page);
}

#[test]
fn every_duration_of_the_command_line_is_written_as_in_the_config() {
    let check = |arguments: &str, is_good: bool| {
        let words: Vec<_> = arguments.split(' ').collect();
        let program = match ["audit", "plan", "advise"].contains(&words[1]) {
            true => tidegate_lab::cli::definition(),
            false => tidegate::cli::definition(),
        };
        let matched = program.try_get_matches_from(words);
        assert_eq!(matched.is_ok(), is_good, "{arguments}: {:?}", matched.err());
    };
    for length in ["24h", "1.5h", "90m", "30s", "1.5s", "250ms", "250us", "0"] {
        check(&format!("tidegate pause --hold {length}"), true);
        check(&format!("tidegate resume --ramp {length}"), true);
        check(&format!("tidegate lower total 5 --for {length}"), true);
        check(&format!("tidegate audit --clock-error {length} LOG"), true);
    }
    for length in ["24", "1d", "-1s", "1,5s", "1e3s", "s", "unlimited"] {
        check(&format!("tidegate pause --hold {length}"), false);
        check(&format!("tidegate lower total 5 --for {length}"), false);
        check(
            &format!("tidegate audit --limit total=9/{length} LOG"),
            false,
        );
    }
    check("tidegate audit --limit total=9/1h LOG", true);
    check("tidegate audit --limit total=9/1.5s LOG", true);
    check("tidegate advise --slo p95=0.5h LOG", true);
    check("tidegate plan --config FILE --max-p95-wait 1h LOG", true);
}

#[test]
fn the_help_has_every_command_once_in_a_group() {
    let mut program = tidegate::cli::definition();
    let help = program.render_help().to_string();
    for group in ["Run:", "Ask a running", "Act on", "Work on logs:", "Try it"] {
        assert!(
            help.contains(&format!("\n{group}")),
            "no {group} in\n{help}"
        );
    }
    let commands = program.get_subcommands().map(clap::Command::get_name);
    for name in commands.filter(|name| *name != "help") {
        let lines = help.lines().map(str::trim_start);
        let named = lines.filter(|line| line.split(' ').next() == Some(name));
        assert_eq!(named.count(), 1, "{name} in\n{help}");
    }
    assert!(program.find_subcommand("limit").is_none());
}
