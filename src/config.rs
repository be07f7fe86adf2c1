//! Reads config.toml into the settings of every stage.
//!
//! Each stage defines the options of its sections (`src/options.rs` says how). `sections` reads
//! all of them, `checks` compares them with one another, and `settings` hands every stage its
//! part. Nothing stops at the first mistake: all of them are reported at once, and only a
//! config without one becomes a [`Config`].

mod backend_tls;
#[cfg_attr(not(feature = "tls"), path = "config/without_tls.rs")]
pub mod certificates;
pub mod checks;
mod classes;
mod coordinate;
pub mod descriptors;
mod fill_in;
mod former;
pub mod part;
mod preset;
mod quota_store;
mod sections;
pub mod server_tls;
mod servers;
mod settings;
mod shared_limits;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
use tidegate_runtime::tls::TlsIdentity;
#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
use tokio_rustls::rustls::sign::CertifiedKey;

use self::descriptors::Descriptors;
use self::sections::Sections;
use crate::call::BackendKind;
use crate::call::identity::fnv1a;
use crate::listen;
use crate::options::tree::Table;
use crate::options::{Catalogue, ConfigForm, ConfigReader, Restarts};
pub use crate::options::{ConfigPlace, Problem, Problems, Severity};
#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
use crate::options::{LocatedKey, Mistake, Notes, shown::quoted};
use crate::telemetry::Format;

/// Where the config is looked for.
pub const DEFAULT_PATH: &str = "/etc/tidegate/config.toml";

/// The file that lists every option.
const FORM: ConfigForm = ConfigForm {
    reference: "docs/reference/options.md",
    elsewhere: &[
        "resource",
        "resources",
        "parent",
        "parent_tls",
        "election",
        "etcd",
        "zookeeper",
    ],
    cure: "that is of a lease server: check its file with `tidegate lease-server --check --config FILE`",
    every: catalogue,
    former: former::instead,
};

/// Largest config that is read.   bytes
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything that the config decides, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Settings of the process and its accept loops.
    pub listen: crate::listen::ServerSettings,
    /// Settings of the protocols.
    pub protocol: crate::protocol::ClientSettings,
    /// Whether limits may name functions that neither the table nor a route has.
    pub allow_unknown: bool,
    /// Settings of the classifier.
    pub classify: crate::classify::ClassifierSettings,
    /// Settings of the coalescer.
    pub coalesce: crate::coalesce::CoalesceSettings,
    /// Settings of the calls that are handed over.
    pub tasks: crate::tasks::TaskSettings,
    /// Settings of callers, rate limits and costs.
    pub callers: crate::callers::CallersSettings,
    /// Settings of the gate.
    pub admit: crate::admit::GateSettings,
    /// Settings of the forwarder.
    pub forward: crate::forward::ForwarderSettings,
    /// The limits that are shared with other sidecars, and their servers; `None` shares no limit.
    pub coordinate: Option<tidegate_leases::sharing::SharingSettings>,
    /// The quotas that are kept with other sidecars, and where; none keeps none.
    pub quotas: Option<tidegate_quota::QuotaSettings>,
    /// Settings of the admin address.
    pub admin: crate::admin::AdminSettings,
    /// Settings of logs.
    pub telemetry: crate::telemetry::LogSettings,
    /// Settings of spans.
    pub trace: crate::telemetry::spans::TraceSettings,
    /// The files with certificates that are read.
    pub certificates: Vec<CertificateFile>,
    /// Every option in effect as TOML, without secrets.
    effective: String,
    /// The options whose change takes effect only after a restart.
    restarts: Restarts,
}

/// A file with certificates, as an option names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// The option, such as `listen.tls.cert`.
    pub option: &'static str,
    /// The path.
    pub path: PathBuf,
    /// Whether any of its certificates may be used, because they are authorities; else all of them are shown to others.
    pub is_of_authorities: bool,
}

impl Config {
    /// A number for everything that is in effect, in 32 hexadecimal digits. Configs with the same
    /// effect have the same one (FNV-1a, 128 bits, of [`effective`]).
    #[must_use]
    pub fn fingerprint(&self) -> String {
        format!("{:032x}", fnv1a(self.effective.as_bytes()))
    }

    /// The options that differ from those of the config before, and take effect only after a
    /// restart.
    #[must_use]
    pub fn waits_for_restart(&self, before: &Self) -> Vec<String> {
        self.restarts.changed(&before.restarts)
    }
}

/// A config without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    /// Options that work and were probably not meant.
    pub warnings: Problems,
}

/// Why a config could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The file was read, and has mistakes.
    #[error(transparent)]
    Wrong(#[from] Problems),
}

impl LoadError {
    /// A line with the file and the reason, or every mistake; see [`Problems::render`].
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
pub fn load(path: &Path) -> Result<LoadedConfig, LoadError> {
    let text = read_text(path)?;
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
    let mut reading = ConfigReader::of(&text, FORM);
    reading.lay_over(variables());
    let log: crate::telemetry::LogSection = reading.root().section("log").read();
    log.format.value
}

/// A variable that is no UTF-8 can't hold a valid option; its replacement characters make that an
/// error with its name.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        (text(name), text(value))
    })
}

/// Reads a config as text.
///
/// # Errors
///
/// If it cannot be read.
pub fn read_text(path: &Path) -> Result<String, LoadError> {
    let text = read_bytes(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let message = format!("line {line} is not UTF-8");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    });
    text.map_err(|cause| LoadError::Unreadable {
        path: path.to_owned(),
        cause,
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path)?.take(FILE_BYTES_MAX + 1);
    if file.read_to_end(&mut bytes)? as u64 > FILE_BYTES_MAX {
        let message = "it is larger than 1 MiB";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads a certificate or a key that an option names.
#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
fn read_pem(path: &Path) -> Result<Vec<u8>, Mistake> {
    // Whatever else a path may lead to could keep its reader waiting.
    let is_file = std::fs::metadata(path).map(|found| found.is_file());
    let bytes = is_file.and_then(|is_file| match is_file {
        true => read_bytes(path),
        false => Err(io::Error::other("it is no file")),
    });
    bytes.map_err(|error| {
        let message = format!("cannot read {}: {error}", quoted(&path.to_string_lossy()));
        Mistake::new(
            message,
            "give the path of a PEM file that tidegate may read",
        )
    })
}

/// A file that TLS cannot use.
#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
fn pem_mistake(path: &Path, error: &tidegate_runtime::tls::PemError) -> Mistake {
    let path = quoted(&path.to_string_lossy());
    Mistake::new(format!("{path} {error}"), error.cure())
}

/// Certificates with their key, and a warning where their order is odd. None if they cannot be used, which is noted.
#[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
fn identity_of(
    identity: &TlsIdentity<'_>,
    cert: &LocatedKey,
    cert_path: &Path,
    key: &LocatedKey,
    key_path: &Path,
    notes: &Notes,
) -> Option<CertifiedKey> {
    let (at, path, error) = match identity.certified() {
        Ok(certified) => {
            let path = quoted(&cert_path.to_string_lossy());
            for doubt in identity.doubts() {
                notes.warn(cert, format!("{path}: {doubt}"), doubt.cure());
            }
            return Some(certified);
        }
        Err(error) if error.is_of_key() => (key, key_path, error),
        Err(error) => (cert, cert_path, error),
    };
    notes.mistake(at, pem_mistake(path, &error));
    None
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
) -> Result<LoadedConfig, Problems> {
    let table = BackendKind::default().functions().iter();
    let known: Vec<&str> = table.map(|function| function.name).collect();
    read_knowing(text, origin, env, &known)
}

/// Reads a config with the names of the functions that the built-in table has: a limit for one that neither they
/// nor a route name is doubted. An empty list doubts none.
///
/// # Errors
///
/// Every mistake, warnings included.
pub fn read_knowing(
    text: &str,
    origin: &str,
    env: impl Iterator<Item = (String, String)>,
    known_functions: &[&str],
) -> Result<LoadedConfig, Problems> {
    let mut reading = ConfigReader::of(text, FORM);
    reading.lay_over(env);
    let (config, problems) = checked(reading, known_functions);
    let problems = Problems::new(origin, text, problems);
    match config {
        Some(config) => Ok(LoadedConfig {
            config,
            warnings: problems,
        }),
        None => Err(problems),
    }
}

/// Reads a config that is part of another file. No name of a function is doubted.
///
/// # Errors
///
/// Every mistake.
pub fn read_tree(tree: Table) -> Result<Config, Vec<Problem>> {
    let (config, problems) = checked(ConfigReader::of_tree(tree, FORM), &[]);
    config.ok_or(problems)
}

/// The config, if it has no error, and every mistake and warning.
fn checked(mut reading: ConfigReader, known_functions: &[&str]) -> (Option<Config>, Vec<Problem>) {
    let mut sections = Sections::read(&reading);
    sections
        .servers
        .stand_in(&mut sections.backend, &reading.notes);
    sections.backend_tls.load(&sections.backend, &reading.notes);
    checks::check(&sections, known_functions, &reading.notes);
    let problems = reading.problems();
    if problems.iter().any(|it| it.severity == Severity::Error) {
        return (None, problems);
    }
    sections.fill_in();
    (Some(settings::of(sections)), problems)
}

/// The config in effect as TOML, defaults filled in. Secrets are hidden; apart from them,
/// reading the text gives the same config again.
#[must_use]
pub fn effective(config: &Config) -> String {
    config.effective.clone()
}

/// Every option there is. `listen.bind` is the path of the one in `[[listen]]`.
#[must_use]
pub fn catalogue() -> Catalogue {
    // One entry of each array, so that its options are asked for.
    let arrays = "[[listen]]\n[[route]]\n[[class]]\n[[caller]]\n[[bucket]]\n[[pace]]\n\
                  [[quota]]\n[[coordinate.limit]]\n[[backend.server]]\n";
    let reading = ConfigReader::of(arrays, FORM);
    Sections::read(&reading);
    reading.catalogue()
}

/// The text of `config.toml.example`.
#[must_use]
pub fn example() -> String {
    catalogue().example(
        "\
The options that most configs have. docs/reference/options.md has all of them, such as
[[caller]], [[bucket]], [[class]] and [[route]]. Made by `make docs`.

Only the listener, the backend and per_window are required; any other line here has its
default. A duration has a unit: ms, s, m or h. An environment variable wins over the file:
TIDEGATE_QUEUE__WORKERS=32. `tidegate check` reports every mistake at once.
",
    )
}

/// The text of `docs/reference/options.md`.
#[must_use]
pub fn reference() -> String {
    catalogue().reference(
        "\
# Options

Every option of the sidecar's config. [Configuration](configuration.md) explains how to begin, and
[config.toml.example](../../config.toml.example) is a file with the options of level *first*: most
configs have them. *Usual* ones are for a certain need. The default of an *expert* one is right unless
a measurement says otherwise. The lease server has [options of its own](lease-server-options.md).
Generated from the source: change an option there, and run `make docs`.

",
        true,
    )
}

#[cfg(test)]
mod tests {
    use super::checks::features::Features;
    use super::*;
    use crate::options::shown::is_secret;

    #[test]
    fn only_tokens_passwords_and_credentials_are_secrets() {
        for key in catalogue().allowed().into_keys() {
            let name = key.rsplit('.').next().expect("split gives one");
            assert_eq!(
                is_secret(&key),
                ["token", "tokens", "password", "sentinel_password"].contains(&name),
                "{key}"
            );
        }
    }

    #[test]
    fn an_option_of_a_feature_that_was_left_out_is_refused_with_the_name_of_the_feature() {
        let least = "[backend]\nsocket = \"127.0.0.1:1\"\n\
                     [limits]\nper_window = \"total:30\"\n\
                     [[listen]]\nname = \"a\"\nbind = \"127.0.0.1:2\"\n\
                     protocol = \"socket\"\n";
        let check = |more: &str, line: &str, message: [&str; 2]| {
            let text = format!("{least}{more}");
            let mut reading = ConfigReader::of(&text, FORM);
            let sections = Sections::read(&reading);
            checks::features::check(&sections, Features::NONE, &reading.notes);
            let problems = Problems::new("config.toml", &text, reading.problems());
            let problems = problems.to_string();
            assert_eq!(problems.matches("this build ").count(), 1, "{problems}");
            let lines: Vec<&str> = problems.lines().collect();
            let with_cure = lines.windows(2).find(|it| it[0].contains("this build "));
            let told = with_cure.expect("a line and its cure").join("\n");
            for message in [line].into_iter().chain(message) {
                assert!(told.contains(message), "{message}: {problems}");
            }
        };
        let tls = "tls = { cert = \"/c\", key = \"/k\" }\n";
        check(tls, ":9:", ["this build has no TLS", "--features tls"]);
        let leases = "[coordinate]\nservers = [\"a:1\"]\nexpected_sidecars = 3\n\
                      [[coordinate.limit]]\nlimit = \"total\"\nresource = \"r\"\nsafe = 5\n";
        check(
            leases,
            ":9:",
            ["this build has no leases", "--features leases"],
        );
        for (engine, server, name) in [
            ("zookeeper", "a:1", "ZooKeeper"),
            ("etcd", "http://a:1", "etcd"),
            ("redis", "redis://a:1", "Redis"),
        ] {
            let quota = format!(
                "[quota_store]\nengine = \"{engine}\"\nservers = [\"{server}\"]\n\
                 expected_sidecars = 3\n\
                 [[quota]]\nname = \"q\"\ntotal = 100\nrefresh_window = \"60s\"\napplies_to = \"user\"\n"
            );
            let message = format!("this build has no quotas in {name}");
            check(&quota, ":10:", [&message, "--features quotas"]);
        }
    }
}
