//! Reads config.toml into the settings of every stage.
//!
//! The way is: `syntax` makes a tree of the file in which every value knows its line, and
//! the environment is laid over it (`tree`); `raw` takes every option out, by name and
//! kind (`reader`, `value`, `text`, `per_window`); `check` compares them with one
//! another. Nothing stops at the first mistake: all of them are told at once (`problem`),
//! and only a config without one becomes a [`Config`].

mod admin;
mod backend_kind;
mod callers;
#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
mod certificates;
mod check;
mod classes;
mod coordinate;
pub mod descriptors;
mod effective;
mod exchange;
mod functions;
mod ignored_headers;
#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
pub mod lease_server;
mod nearest;
mod odd_paths;
mod per_window;
mod problem;
mod quotas;
mod rate_limits;
mod raw;
mod reader;
mod request_heads;
mod secret;
mod settings;
mod syntax;
mod text;
mod tree;
mod tunnel;
mod value;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use effective::effective;
pub(crate) use nearest::nearest;
pub use problem::{Place, Problem, Problems, Severity};

use self::descriptors::Descriptors;
use crate::call::BackendKind;
use crate::listen;
use crate::telemetry::Format;
use reader::{At, Notes, Section};
use value::Mistake;

/// Where the config is looked for.
pub const DEFAULT_PATH: &str = "/etc/tidegate/config.toml";

/// Largest config that is read.   bytes
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything that the config decides, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data-plane threads.
    pub threads: usize,
    /// How long a drain may take.
    pub drain_timeout: Duration,
    /// Settings of the accept loop.
    pub listen: crate::listen::Settings,
    /// Settings of the protocols.
    pub protocol: crate::protocol::Settings,
    /// Whether limits may name functions that neither the table nor a route has.
    pub allow_unknown: bool,
    /// Settings of the classifier.
    pub classify: crate::classify::Settings,
    /// Settings of the coalescer.
    pub coalesce: crate::coalesce::Settings,
    /// Settings of the calls that are handed over.
    pub tasks: crate::tasks::Settings,
    /// Settings of callers, rate limits and costs.
    pub callers: crate::callers::Settings,
    /// Settings of the gate.
    pub admit: crate::admit::Settings,
    /// Settings of the forwarder.
    pub forward: crate::forward::Settings,
    /// Which limits are shared with other sidecars, and through whom; none shares nothing.
    pub coordinate: Option<tidegate_leases::sharing::Settings>,
    /// The quotas that are kept with other sidecars, and where; none keeps none.
    pub quotas: Option<tidegate_quota::Quotas>,
    /// Settings of the admin address.
    pub admin: crate::admin::Settings,
    /// Settings of logs.
    pub telemetry: crate::telemetry::Settings,
}

/// A config without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The settings.
    pub config: Config,
    /// What works and was probably not meant.
    pub warnings: Problems,
}

/// Why a config could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// It was read, and has mistakes.
    #[error(transparent)]
    Wrong(#[from] Problems),
}

impl LoadError {
    /// One line that says which file and why, or every mistake; see [`Problems::render`].
    #[must_use]
    pub fn render(&self, graphical: bool) -> String {
        match self {
            Self::Unreadable { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                format!("{self}: {cause}; create it, or name another file with --config")
            }
            Self::Unreadable { cause, .. } => format!("{self}: {cause}"),
            Self::Wrong(problems) => problems.render(graphical),
        }
    }
}

/// Reads the config in a file, with the process's environment laid over it.
///
/// # Errors
///
/// A file that can't be read, is no UTF-8 or is larger than 1 MiB; or every mistake in it.
pub fn load(path: &Path) -> Result<Checked, LoadError> {
    let text = read_text(path).map_err(|cause| LoadError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    let origin = path.display().to_string();
    let mut checked = read(&text, &origin, variables())?;
    let descriptors = Descriptors::divide(&checked.config, listen::descriptors::allowed());
    checked.warnings.extend(descriptors.warning());
    Ok(checked)
}

/// How the log of a config looks that has mistakes elsewhere, so that they are reported in that
/// form. The default where even this cannot be read.
#[must_use]
pub fn log_format(path: &Path) -> Format {
    let text = read_text(path).unwrap_or_default();
    let mut tree = syntax::parse(&text).tree;
    tree::lay_over(&mut tree, variables());
    let notes = Notes::default();
    let raw = raw::read(Section::root(&tree, &notes));
    raw.log.format.meant().copied().unwrap_or(Format::Auto)
}

/// A variable that is no UTF-8 can't hold a valid option; its replacement characters make that an
/// error with its name.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        (text(name), text(value))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it is larger than 1 MiB",
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {line} is not UTF-8"),
        )
    })
}

/// Reads a config, and the certificates and keys that it names. `origin` is the name of the file, for messages; of the environment, only
/// `TIDEGATE_SECTION__KEY` variables count, and they win over the file.
///
/// # Errors
///
/// Every mistake, warnings included.
pub fn read(
    text: &str,
    origin: &str,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Checked, Problems> {
    let table = BackendKind::default().functions().iter();
    let known: Vec<&str> = table.map(|function| function.name).collect();
    read_knowing(text, origin, env, &known)
}

/// The same, with the names of the functions that the built-in table has: a limit for one that
/// neither they nor a route name is doubted. An empty list doubts none.
///
/// # Errors
///
/// Every mistake, warnings included.
pub fn read_knowing(
    text: &str,
    origin: &str,
    env: impl Iterator<Item = (String, String)>,
    known_functions: &[&str],
) -> Result<Checked, Problems> {
    let syntax::Parsed {
        mut tree,
        problems: mut list,
        broken,
        lost,
    } = syntax::parse(text);
    let tree::NotLaid {
        misplaced,
        pathless,
    } = tree::lay_over(&mut tree, env);
    let notes = Notes::new(broken, lost);
    for variable in misplaced {
        let at = At {
            key: variable.key,
            place: Place::Variable(variable.variable),
        };
        notes.error(&at, Mistake::new(variable.message, variable.cure));
    }
    let raw = raw::read(Section::root(&tree, &notes));
    check::check(&raw, known_functions, &notes);
    for variable in pathless {
        notes.pathless(variable);
    }
    let (noted, _) = notes.finish();
    list.extend(noted);
    let problems = Problems::new(origin, text, list);
    if problems.has_error() {
        return Err(problems);
    }
    Ok(Checked {
        config: settings::of(&raw),
        warnings: problems,
    })
}

/// Every option there is, by its path (`listen.bind` for the one in `[[listen]]`), with
/// what it allows in words.
#[must_use]
pub fn options() -> BTreeMap<String, String> {
    // One entry of each array, so that its options are asked for.
    let parsed = syntax::parse(
        "[[listen]]\n[[route]]\n[[class]]\n[[caller]]\n[[rate_limit]]\n[[coordinate.limit]]\n",
    );
    let notes = Notes::default();
    raw::read(Section::root(&parsed.tree, &notes));
    notes.finish().1
}
