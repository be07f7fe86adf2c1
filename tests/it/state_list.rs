//! docs/reference/state.md has each piece of state of the process, and what becomes of it at a restart.

use std::collections::BTreeSet;

/// The structs whose fields are the state of the process, and their sources.
const HOLDERS: [(&str, &str); 5] = [
    ("AppState", "src/app.rs"),
    ("Pipeline", "src/pipeline.rs"),
    ("GateState", "src/admit/lock.rs"),
    ("Scheduler", "crates/limits/src/scheduler/state.rs"),
    ("Budgets", "crates/limits/src/scheduler/budgets.rs"),
];

const FATES: [&str; 5] = ["ledger", "state file", "store", "made again", "lost"];

/// Fields of the first struct with this name, in a source as rustfmt writes it.
fn fields<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let mut lines = source.lines();
    let begins = |line: &&str| {
        let rest = line.split_once(&format!("struct {name}"));
        rest.is_some_and(|(_, rest)| rest.starts_with([' ', '<']) && rest.ends_with('{'))
    };
    lines.find(begins).expect("the struct is there");
    let fields = lines.take_while(|line| *line != "}").filter_map(|line| {
        let field = line.strip_prefix("    ")?;
        let field = ["pub(super) ", "pub(crate) ", "pub "]
            .iter()
            .find_map(|it| field.strip_prefix(it))
            .unwrap_or(field);
        let (name, _) = field.split_once(": ")?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then_some(name)
    });
    fields.collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn each_piece_of_state_has_a_fate() {
    let mut state = BTreeSet::new();
    for (name, path) in HOLDERS {
        let source = read(path);
        let fields = fields(&source, name);
        assert!(fields.len() > 3, "{path}: {fields:?}");
        state.extend(fields.iter().map(|field| format!("{name}.{field}")));
    }
    let page = read("docs/reference/state.md");
    let mut listed = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [piece, fate, why, ""] = cells[..] else {
            panic!("{row}");
        };
        assert!(FATES.contains(&fate), "{row}");
        assert!(!why.is_empty(), "{row}");
        let piece = piece.trim_end_matches('`').to_owned();
        assert!(listed.insert(piece), "{row}: twice");
    }
    let missing: Vec<_> = state.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&state).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/reference/state.md lacks {missing:?}, and has {gone:?}, which is gone"
    );
}
