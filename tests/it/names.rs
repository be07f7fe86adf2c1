//! Names that a reader can keep apart, and docs that read alone. Read from the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Doc blocks that begin with a pronoun: texts of options and commands. The allowance may only shrink.
const PRONOUN_DOCS_MAX: usize = 47;

/// First words of a doc that does not name its subject.
const PRONOUNS: [&str; 14] = [
    "it", "its", "what", "one", "nothing", "this", "none", "the same", "they", "that", "these",
    "those", "which", "whose",
];

/// Rust sources below a folder, except those that `prost-build` writes.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Every source of the workspace with its text, by its path from the root.
pub(crate) fn workspace() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples", "fuzz"] {
        sources(&root.join(folder), &mut files);
    }
    let texts = files.into_iter().map(|file| {
        let path = file.strip_prefix(root).expect("the file is below the root");
        let text = fs::read_to_string(&file).expect("a source is text");
        (path.to_string_lossy().into_owned(), text)
    });
    texts
        .filter(|(_, text)| !text.starts_with("// This file is @generated"))
        .collect()
}

/// The first lines of doc blocks that begin with a pronoun.
fn docs_with_a_pronoun(source: &str) -> Vec<&str> {
    let (mut found, mut before) = (Vec::new(), "");
    for line in source.lines() {
        let text = line.trim_start();
        let kind = ["///", "//!"]
            .into_iter()
            .find(|kind| text.starts_with(kind));
        if let Some(kind) = kind
            && before != kind
            && begins_with_a_pronoun(text[kind.len()..].trim_start())
        {
            found.push(text);
        }
        before = kind.unwrap_or("");
    }
    found
}

fn begins_with_a_pronoun(text: &str) -> bool {
    let text = text.to_lowercase();
    PRONOUNS.iter().any(|pronoun| {
        let rest = text.strip_prefix(pronoun);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

/// The types that a source defines, tests at its end aside.
fn types(source: &str) -> Vec<&str> {
    let source = source.split("#[cfg(test)]\nmod tests {").next();
    let lines = source.unwrap_or_default().lines();
    lines.filter_map(type_defined_in).collect()
}

fn type_defined_in(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => code,
    };
    let (kind, rest) = code.split_once(' ')?;
    // An indented `type` belongs to a trait.
    let defines = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    // A macro defines what its caller names.
    (defines && !name.is_empty()).then_some(name)
}

/// The crate of a product source; `None` for tests, and for stand-ins of a module whose feature is off.
pub(crate) fn crate_of<'a>(path: &'a str, test_modules: &BTreeSet<String>) -> Option<&'a str> {
    let (krate, file) = match path.strip_prefix("crates/") {
        Some(rest) => rest.split_once("/src/")?,
        None => ("tidegate", path.strip_prefix("src/")?),
    };
    let is_stand_in = file.rsplit('/').next()?.starts_with("without_");
    let module = path.trim_end_matches(".rs");
    let is_test = file.ends_with("tests.rs")
        || test_modules.iter().any(|test| {
            let rest = module.strip_prefix(test.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    (!is_stand_in && !is_test).then_some(krate)
}

/// Paths of the modules that only tests have, without `.rs`.
pub(crate) fn test_modules(workspace: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, text) in workspace {
        let module = path.trim_end_matches(".rs");
        let folder = match module.rsplit_once('/') {
            Some((folder, "lib" | "main" | "mod")) => folder,
            _ => module,
        };
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let next = lines.peek().map_or("", |next| next.trim());
            let next = next.trim_start_matches("pub(crate) ");
            let name = next
                .strip_prefix("mod ")
                .and_then(|it| it.strip_suffix(';'));
            if let ("#[cfg(test)]", Some(name)) = (line, name) {
                found.insert(format!("{folder}/{name}"));
            }
        }
    }
    found
}

/// Where each type name is defined: its crate and its file.
fn definitions() -> BTreeMap<String, Vec<(String, String)>> {
    let workspace = workspace();
    let test_modules = test_modules(&workspace);
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (path, text) in &workspace {
        let Some(krate) = crate_of(path, &test_modules) else {
            continue;
        };
        for name in types(text) {
            let place = (krate.to_owned(), path.clone());
            found.entry(name.to_owned()).or_default().push(place);
        }
    }
    found
}

/// Fails if more places break a rule than still may.
fn check_allowance(broken: &[String], allowance: usize) {
    let count = broken.len();
    let list = broken.join("\n");
    assert!(count <= allowance, "{count}, and {allowance} may:\n{list}");
}

#[test]
fn docs_name_their_subject() {
    let workspace = workspace();
    let docs = workspace.iter().flat_map(|(path, text)| {
        let found = docs_with_a_pronoun(text).into_iter();
        found.map(move |line| format!("{path}: {line}"))
    });
    check_allowance(&docs.collect::<Vec<_>>(), PRONOUN_DOCS_MAX);
}

#[test]
fn a_crate_defines_a_type_name_once() {
    let mut repeated = Vec::new();
    for (name, places) in definitions() {
        let mut crates: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (krate, file) in places {
            crates.entry(krate).or_default().push(file);
        }
        let files = crates.into_values().filter(|files| files.len() > 1);
        repeated.extend(files.map(|files| format!("{name}: {}", files.join(", "))));
    }
    check_allowance(&repeated, 0);
}

#[test]
fn a_type_name_is_defined_at_most_twice_in_the_workspace() {
    let definitions = definitions().into_iter();
    let repeated = definitions.filter(|(_, places)| places.len() > 2);
    let repeated = repeated.map(|(name, places)| {
        let files = places.into_iter().map(|(_, file)| file);
        format!("{name}: {}", files.collect::<Vec<_>>().join(", "))
    });
    check_allowance(&repeated.collect::<Vec<_>>(), 0);
}

#[test]
fn a_doc_that_begins_with_a_pronoun_is_found_in_every_form() {
    let check = |source: &str, count: usize| {
        assert_eq!(docs_with_a_pronoun(source).len(), count, "{source}");
    };
    check("/// What a call has drawn.\nstruct Draws;", 1);
    check("//! It waits.\n\n/// None.\nfn f() {}", 2);
    check("    /// The same, in seconds.\n", 1);
    check("/// A call.\n/// It waits.\n", 0);
    check("//! A call.\n/// It waits.\n", 1);
    check("// It waits.\n/// Item of a list.\n/// Oneself.\n", 0);
}

#[test]
fn a_type_is_found_in_every_form() {
    let check = |line: &str, name: Option<&str>| assert_eq!(type_defined_in(line), name, "{line}");
    check("struct Call;", Some("Call"));
    check("pub struct Call<T>(T);", Some("Call"));
    check("    pub(crate) enum Call {", Some("Call"));
    check("pub(in crate::a) trait Call: Sized {", Some("Call"));
    check("type Call = u8;", Some("Call"));
    check("    type Call = u8;", None);
    check("// struct Call;", None);
    check("publish struct", None);
    check("fn call() {}", None);
    check("pub struct $Type;", None);
}
