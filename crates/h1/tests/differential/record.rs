//! Files that the repository keeps: the cases of `tests/http_corpus`, and in `tests/fuzz` how far `make fuzz` has
//! come, and a small corpus of inputs that reached a verdict first. A character of a text up to U+00FF is one byte,
//! as in `tests/http_corpus`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Deserialize;

use super::inputs::record::{quoted, replace};
use super::inputs::{Kind, Seeds};

/// An input of the corpus.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) kind: Kind,
    pub(crate) reached: String,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kind: String,
    reached: String,
    bytes: String,
}

#[derive(Deserialize)]
struct Corpus {
    #[serde(default)]
    input: Vec<Line>,
}

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn text(path: &str) -> String {
    let path = tests().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn bytes(text: &str, repeat: Option<&(String, usize)>) -> Vec<u8> {
    let text = match repeat {
        Some((what, times)) => text.replace('…', &what.repeat(*times)),
        None => text.to_owned(),
    };
    let byte = |it: char| u8::try_from(u32::from(it)).expect("a character up to U+00FF");
    text.chars().map(byte).collect()
}

const CORPUS: &str = "fuzz/parser-corpus.toml";

/// The file with the count.
pub(crate) fn path() -> PathBuf {
    tests().join("fuzz/parser.toml")
}

/// The corpus, in the order of the file.
pub(crate) fn corpus() -> Vec<Kept> {
    let corpus: Corpus =
        toml::from_str(&text(CORPUS)).unwrap_or_else(|error| panic!("{CORPUS}: {error}"));
    let kept = corpus.input.into_iter().map(|line| Kept {
        kind: Kind::ALL
            .into_iter()
            .find(|it| it.name() == line.kind)
            .unwrap_or_else(|| panic!("{CORPUS}: no kind is {:?}", line.kind)),
        reached: line.reached,
        bytes: bytes(&line.bytes, None),
    });
    kept.collect()
}

/// Writes the corpus, with one input for each verdict that was reached.
pub(crate) fn write_corpus(mut kept: Vec<Kept>) {
    kept.sort_by(|one, other| {
        (one.kind.name(), &one.reached).cmp(&(other.kind.name(), &other.reached))
    });
    let mut known = BTreeSet::new();
    let mut text =
        "# One small input for each verdict that `make fuzz` has reached. It writes this file.\n\
                    # Every test run tries them first.\n"
            .to_owned();
    for Kept {
        kind,
        reached,
        bytes,
    } in kept
    {
        if !known.insert((kind.name(), reached.clone())) {
            continue;
        }
        let _ = write!(
            text,
            "\n[[input]]\nkind = \"{}\"\nreached = \"{reached}\"\nbytes = {}\n",
            kind.name(),
            quoted(&bytes)
        );
    }
    replace(&tests().join(CORPUS), &text);
}

#[derive(Deserialize)]
struct File {
    #[serde(default, rename = "request")]
    requests: Vec<Case>,
    #[serde(default, rename = "response")]
    responses: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    bytes: String,
    repeat: Option<(String, usize)>,
}

/// Every case of `tests/http_corpus`, in the order of its files.
pub(crate) fn cases() -> Vec<(Kind, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(tests().join("http_corpus"))
        .expect("the corpus is there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let file: File =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let kinds = [
            (Kind::Requests, file.requests),
            (Kind::Responses, file.responses),
        ];
        for (kind, all) in kinds {
            let all = all.iter().map(|it| bytes(&it.bytes, it.repeat.as_ref()));
            cases.extend(all.map(|it| (kind, it)));
        }
    }
    cases
}

/// The inputs of the corpus, to be mutated.
pub(crate) fn seeds() -> Seeds {
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    for (kind, bytes) in cases() {
        match kind {
            Kind::Requests => requests.push(bytes),
            Kind::Responses | Kind::Chunks => responses.push(bytes),
        }
    }
    Seeds::of(requests, responses)
}
