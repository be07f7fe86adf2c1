//! Product functions and files that one reader can hold. Read from the sources.
//!
//! All lines count, comments and blank lines too: a function from its `fn` to its closing brace, a file up to the
//! tests at its end. Sources that `prost-build` writes and modules that only tests have do not count.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::names::{crate_of, test_modules, workspace};

/// The longest product function.   lines
const FUNCTION_MAX: usize = 80;

/// The longest product file.   lines
const FILE_MAX: usize = 700;

/// The part of a source that is not tests.
fn product(source: &str) -> &str {
    let tests = source.find("\n#[cfg(test)]\nmod tests {");
    &source[..tests.map_or(source.len(), |at| at + 1)]
}

/// Functions and their lines. In the layout of rustfmt, a body ends at a brace that is indented like its `fn`,
/// and so does a signature without a body at its semicolon.
fn functions(source: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| {
            let rest = line.strip_prefix(indent).unwrap_or_default();
            rest == "}" || !rest.starts_with(' ') && rest.ends_with(';')
        };
        let rest = match line.ends_with(['}', ';']) {
            true => Some(0),
            false => lines[first..].iter().position(is_end),
        };
        found.push((name, rest.map_or(1, |rest| rest + 1)));
    }
    found
}

/// The name of the function that begins in a line.
fn function(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    if words.starts_with("//") || words.starts_with('"') {
        return None;
    }
    if let Some(rest) = words.strip_prefix("pub") {
        words = match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(") ")?.1,
            None => rest.trim_start(),
        };
    }
    for word in ["default ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        words = words.strip_prefix(word).unwrap_or(words);
    }
    let name = words.strip_prefix("fn ")?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

fn product_sources() -> Vec<(String, String)> {
    let workspace = workspace();
    let test_modules = test_modules(&workspace);
    let sources = workspace.into_iter();
    let product_only = |(path, text): (String, String)| {
        crate_of(&path, &test_modules)?;
        let text = product(&text).to_owned();
        Some((path, text))
    };
    sources.filter_map(product_only).collect()
}

#[test]
fn a_function_has_at_most_80_lines() {
    let sources = product_sources();
    let all: Vec<_> = sources
        .iter()
        .flat_map(|(path, text)| functions(text).into_iter().map(move |it| (path, it)))
        .collect();
    assert!(all.len() > 5_000, "only {} functions found", all.len());
    let is_long = |(_, (_, lines)): &&(&String, (&str, usize))| *lines > FUNCTION_MAX;
    let long: Vec<_> = all.iter().filter(is_long).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn a_file_has_at_most_700_lines() {
    let sources = product_sources();
    assert!(sources.len() > 500, "only {} files found", sources.len());
    let lines = sources
        .iter()
        .map(|(path, text)| (path, text.lines().count()));
    let long: Vec<_> = lines.filter(|(_, lines)| *lines > FILE_MAX).collect();
    assert!(long.is_empty(), "{long:#?}");
}

/// The files that a stranger reads to follow one plain HTTP call.
#[test]
fn the_story_of_a_plain_http_call_has_at_most_40_files_and_12_000_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("the document names files");
    let document = read("docs/life-of-a-call.md");
    let (_, story) = document
        .split_once("## The files of one plain HTTP call")
        .expect("the document has the story");
    let (story, _) = story.split_once("\n## ").expect("a section follows");
    let rows = story.lines().filter(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let files: BTreeSet<&str> = names.collect();
    let lines: usize = files.iter().map(|path| read(path).lines().count()).sum();
    assert!((30..=40).contains(&files.len()), "{} files", files.len());
    assert!(lines <= 12_000, "{lines} lines");
}

#[test]
fn a_function_is_counted_from_its_fn_to_its_brace_in_every_form() {
    let check = |source: &str, expected: &[(&str, usize)]| {
        assert_eq!(functions(source), expected, "{source}");
    };
    check("fn one() {\n    // Why.\n\n    two();\n}\n", &[("one", 5)]);
    check("fn one() {}\nfn two() {\n}\n", &[("one", 1), ("two", 2)]);
    check(
        "impl A {\n    pub(super) const fn one(\n        &self,\n    ) -> u8 {\n        1\n    }\n}\n",
        &[("one", 5)],
    );
    check(
        "fn one<T>() -> impl Future\nwhere\n    T: Send,\n{\n    loop {}\n}\n",
        &[("one", 6)],
    );
    check(
        "trait A {\n    fn one(&self);\n\n    fn two(&self) {\n    }\n}\n",
        &[("one", 1), ("two", 2)],
    );
    check("/// fn one() {\nstruct A {\n    of: fn(u8),\n}\n", &[]);
    assert_eq!(
        product("fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n"),
        "fn a() {}\n\n"
    );
}
