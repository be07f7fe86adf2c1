//! The cases as their files hold them: `tests/http_corpus/README.md`.

use std::path::PathBuf;

use serde::Deserialize;

use super::mutations;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Where the facts are from.
    source: String,
    #[serde(default, rename = "request")]
    requests: Vec<Case>,
    #[serde(default, rename = "response")]
    responses: Vec<Response>,
}

/// Bytes that a client sends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    /// Of an RFC.
    pub(super) section: String,
    pub(super) bytes: String,
    /// The text in place of `…` in `bytes`, and how often.
    pub(super) repeat: Option<(String, usize)>,
    /// The requests that the backend sees, each as "METHOD target framing".
    pub(super) backend: Vec<String>,
    /// The answers to the client in their order, and what becomes of its connection.
    pub(super) client: String,
    pub(super) why: Option<String>,
}

/// Bytes that a backend sends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Response {
    pub(super) name: String,
    pub(super) section: String,
    /// The method that is answered; GET if left out.
    #[serde(default)]
    pub(super) to: Option<String>,
    pub(super) bytes: String,
    pub(super) repeat: Option<(String, usize)>,
    /// The bytes that come a moment later, when the client has its answer.
    #[serde(default)]
    pub(super) later: String,
    /// Whether the backend then closes the connection.
    #[serde(default)]
    pub(super) closes: bool,
    /// The answer of the client: "STATUS framing: body", or "refused", or "cut".
    pub(super) client: String,
    /// Whether the next call may use the same connection to the backend.
    pub(super) kept: bool,
    pub(super) why: Option<String>,
}

/// The cases of one source.
pub(super) struct Source {
    pub(super) name: String,
    /// Where they are from.
    pub(super) from: String,
    pub(super) requests: Vec<Case>,
    pub(super) responses: Vec<Response>,
}

/// Every source, in the order of the names of their files.
pub(super) fn sources() -> Vec<Source> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/http_corpus");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    files.sort();
    let files = files.iter().map(|path| {
        let text = std::fs::read_to_string(path).expect("a readable file");
        let file: File =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_stem().expect("it has a name").to_string_lossy();
        let mut requests = file.requests;
        if name == "smuggler" {
            requests.extend(mutations::all());
        }
        Source {
            name: name.into_owned(),
            from: file.source,
            requests,
            responses: file.responses,
        }
    });
    files.collect()
}

/// The bytes that a text stands for: each character up to U+00FF is one byte, and `…` what is
/// repeated.
pub(super) fn bytes(text: &str, repeat: Option<&(String, usize)>) -> Vec<u8> {
    let text = match repeat {
        Some((what, times)) => text.replace('…', &what.repeat(*times)),
        None => text.to_owned(),
    };
    let byte = |it: char| u8::try_from(u32::from(it)).expect("a character up to U+00FF");
    text.chars().map(byte).collect()
}

impl Case {
    pub(super) fn bytes(&self) -> Vec<u8> {
        bytes(&self.bytes, self.repeat.as_ref())
    }
}

impl Response {
    pub(super) fn bytes(&self) -> Vec<u8> {
        bytes(&self.bytes, self.repeat.as_ref())
    }
}
