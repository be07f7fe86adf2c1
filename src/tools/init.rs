//! `tidegate init`: writes a first config, with the reason for each value.
//!
//! Values come from sdkserver's `zvmsdk.conf`, from the advice of logs, or from flags and questions. A
//! limit per window that none of these gives is asked for: a number that suits some backend would break
//! another one.

mod arguments;
mod ask;
mod draft;
mod learned;
mod zvmsdk;

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use self::arguments::dialect;
pub use self::arguments::{BackendProtocol, HttpServerKind, PerWindow};
pub use self::ask::Answers;
use self::ask::Question;
use self::draft::{Draft, Scalar};
use self::learned::{FromLogs, LearnedValue, learn};
use self::zvmsdk::SdkServer;
use tidegate_runtime::command::{note, printed};

use super::check::new_guest::NewGuest;
use super::failed;
use super::service_user::{self, ConfigReaders, Content};
use crate::classify::message::dialects::RpcDialect;
use crate::config::{self, DEFAULT_PATH};
use crate::options::Words as _;
use crate::options::kind::show_duration;

const LISTEN: &str = "[[listen]]";
const BACKEND: &str = "[backend]";
const LIMITS: &str = "[limits]";
const QUEUE: &str = "[queue]";
/// How long a call for z/VM may wait: Apache gives up after 60 s, and nova deletes a new guest if its
/// network takes more than 300 s, in which six calls may wait.   seconds
const ZVM_WAIT: u32 = 45;
/// The default of the design.   calls
const OUTSTANDING: u64 = 10;
const WORKERS: u64 = 64;

/// The arguments of `tidegate init`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InitArguments {
    /// The config of the z/VM SDK server, /etc/zvmsdk/zvmsdk.conf
    #[arg(long, value_name = "FILE")]
    pub zvmsdk_conf: Option<PathBuf>,
    /// What the backend speaks: sdkserver's socket protocol, HTTP, or anything else over TCP
    #[arg(long)]
    pub protocol: Option<BackendProtocol>,
    /// What answers HTTP: the z/VM SDK server (sdkwsgi), or any other server
    #[arg(long)]
    pub kind: Option<HttpServerKind>,
    /// The protocol of an HTTP server whose calls are named in their messages: json-rpc, xapi, mcp or openai
    #[arg(long, value_parser = dialect, conflicts_with_all = ["protocol", "kind", "zvmsdk_conf"])]
    pub dialect: Option<RpcDialect>,
    /// Where the backend listens once Tidegate is in front of it
    #[arg(long, value_name = "HOST:PORT")]
    pub backend: Option<String>,
    /// Where Tidegate listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Calls per second: 30, or "total:30, guest_list:10", or off
    #[arg(long, value_name = "CALLS")]
    pub per_window: Option<PerWindow>,
    /// Calls at the backend at once
    #[arg(long, value_name = "CALLS")]
    pub at_once: Option<u32>,
    /// Logs to learn from: Apache's, nginx's, HAProxy's, or Tidegate's
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub log: Vec<PathBuf>,
    /// The LogFormat of Apache or the log_format of nginx, if it is not a usual one
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// The file to write; `-` is standard output
    #[arg(long, short, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Ask nothing that has a default
    #[arg(long)]
    pub yes: bool,
}

/// The result: a config and notes on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitResult {
    /// The config.
    pub text: String,
    /// Notes: gaps in the logs, warnings, and next steps.
    pub notes: Vec<String>,
}

/// Runs the command. Exit code 0 if the config is written, 1 if not, 2 if a file cannot be read.
pub(crate) fn run(arguments: &InitArguments) -> ExitCode {
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let (mut input, mut output) = (io::stdin().lock(), io::stderr());
    let mut answers = match is_terminal && !arguments.yes {
        true => Answers::Terminal {
            input: &mut input,
            output: &mut output,
        },
        false => Answers::Flags,
    };
    match init(arguments, &mut answers) {
        Ok(InitResult { text, notes }) => {
            let code = match arguments.out == Path::new("-") {
                true => printed(&text, ExitCode::SUCCESS),
                false => ExitCode::SUCCESS,
            };
            for line in notes {
                note(format_args!("{line}\n"));
            }
            code
        }
        Err(why) => failed(why),
    }
}

/// Makes the config and writes it.
///
/// # Errors
///
/// What is missing or wrong. Then no file was written.
pub fn init(arguments: &InitArguments, answers: &mut Answers<'_>) -> Result<InitResult, String> {
    let out = &arguments.out;
    let is_file = out != Path::new("-");
    if is_file && !arguments.force && out.exists() {
        return Err(format!(
            "{} is there already; --force replaces it",
            out.display()
        ));
    }
    let sdk = match &arguments.zvmsdk_conf {
        Some(path) => Some(read_sdk(path)?),
        None => None,
    };
    let learned = match arguments.log.is_empty() {
        true => FromLogs::default(),
        false => {
            let given = sdk.as_ref().and_then(|sdk| sdk.max_wait_seconds);
            let format = arguments.log_format.as_deref();
            learn(&arguments.log, format, given.unwrap_or(ZVM_WAIT))?
        }
    };
    let place = Placement {
        dialect: arguments.dialect,
        ..place(arguments, answers, sdk.as_ref(), learned.is_zvm)?
    };
    let mut draft = Draft::default();
    place.write(&mut draft);
    limits(
        arguments,
        answers,
        &place,
        sdk.as_ref(),
        &learned,
        &mut draft,
    )?;
    let text = draft.text();
    let mut notes: Vec<String> = learned.notes.clone();
    match config::read(&text, &out.display().to_string(), std::iter::empty()) {
        Ok(checked) => {
            if !checked.warnings.is_empty() {
                notes.push(checked.warnings.render(false).trim_end().to_owned());
            }
            let new_guest = NewGuest::of(&checked.config);
            notes.extend(new_guest.and_then(|it| it.warning()));
        }
        Err(problems) => {
            return Err(format!(
                "these values make no config:\n{}",
                problems.render(false)
            ));
        }
    }
    if is_file {
        if answers.is_person() {
            let name = out.display();
            let yes = Question {
                text: &format!("\n{text}\nWrite this to {name}? (yes or no)"),
                flag: "--yes",
                default: Some("yes"),
            };
            let is_meant = answers.ask(yes, |answer| match answer {
                "y" | "yes" => Ok(true),
                "n" | "no" => Ok(false),
                _ => Err("yes or no".to_owned()),
            })?;
            if !is_meant {
                return Err("nothing was written".to_owned());
            }
        }
        let readers = service_user::write_config(out, &text, Content::Open, arguments.force)
            .map_err(|cause| format!("cannot write {}: {cause}", out.display()))?;
        notes.extend(note_of(readers, out));
    }
    notes.push(place.next(out));
    Ok(InitResult { text, notes })
}

fn read_sdk(path: &Path) -> Result<SdkServer, String> {
    let name = path.display();
    let unread = |cause: io::Error| format!("cannot read {name}: {cause}");
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unread)?;
    file.take(zvmsdk::BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unread)?;
    if text.len() as u64 > zvmsdk::BYTES_MAX {
        return Err(format!("{name} has more than {} bytes", zvmsdk::BYTES_MAX));
    }
    SdkServer::read(&text)
        .map_err(|why| format!("{name}: {why}; sdkserver does not start with it either"))
}

/// Where Tidegate stands.
#[derive(Debug)]
struct Placement {
    protocol: BackendProtocol,
    is_zvm: bool,
    dialect: Option<RpcDialect>,
    /// Where sdkserver listened before, if it has to move.
    moves_from: Option<String>,
    listen: String,
    backend: String,
    why_listen: String,
    why_backend: String,
}

fn place(
    arguments: &InitArguments,
    answers: &mut Answers<'_>,
    sdk: Option<&SdkServer>,
    logs_are_zvm: bool,
) -> Result<Placement, String> {
    let protocol = match (arguments.protocol, arguments.dialect) {
        (None, Some(_)) => return in_front(arguments, answers, BackendProtocol::Http, false),
        (Some(protocol), _) => protocol,
        (None, None) => {
            let question = Question {
                text: "What does the backend speak: socket (sdkserver), http, or tcp?",
                flag: "--protocol",
                default: sdk.map(|_| "socket"),
            };
            answers.ask(question, |answer| {
                <BackendProtocol as clap::ValueEnum>::from_str(answer, true)
                    .map_err(|_| "socket, http or tcp".to_owned())
            })?
        }
    };
    let is_zvm = match (protocol, arguments.kind) {
        (BackendProtocol::Socket, _) | (BackendProtocol::Http, Some(HttpServerKind::Zvm)) => true,
        (BackendProtocol::Tcp, _) | (BackendProtocol::Http, Some(HttpServerKind::Http)) => false,
        (BackendProtocol::Http, None) if sdk.is_some() || logs_are_zvm => true,
        (BackendProtocol::Http, None) => {
            let question = Question {
                text: "Which HTTP server is it: zvm (sdkwsgi of the z/VM SDK server), or http (any other)?",
                flag: "--kind",
                default: Some("http"),
            };
            let kind = answers.ask(question, |answer| {
                <HttpServerKind as clap::ValueEnum>::from_str(answer, true)
                    .map_err(|_| "zvm or http".to_owned())
            })?;
            kind == HttpServerKind::Zvm
        }
    };
    match (protocol, sdk) {
        (BackendProtocol::Socket, Some(sdk)) => between(arguments, sdk),
        _ => in_front(arguments, answers, protocol, is_zvm),
    }
}

/// Between the clients of sdkserver and sdkserver: one of the two ports changes.
fn between(arguments: &InitArguments, sdk: &SdkServer) -> Result<Placement, String> {
    let host = sdk.bind_addr.clone().unwrap_or_else(|| "127.0.0.1".into());
    let port = sdk.bind_port.unwrap_or(2000);
    let own = format!("{host}:{port}");
    let said = match (&sdk.bind_addr, sdk.bind_port) {
        (None, None) => "zvmsdk.conf names no address, and these are sdkserver's defaults",
        _ => "bind_addr and bind_port of zvmsdk.conf",
    };
    let reached = if host == "0.0.0.0" {
        "127.0.0.1"
    } else {
        &host
    };
    let listens_elsewhere = arguments.listen.as_ref().filter(|listen| **listen != own);
    if let Some(listen) = listens_elsewhere {
        return Ok(Placement {
            protocol: BackendProtocol::Socket,
            is_zvm: true,
            dialect: None,
            moves_from: None,
            listen: listen.clone(),
            backend: arguments
                .backend
                .clone()
                .unwrap_or(format!("{reached}:{port}")),
            why_listen: "As given. Clients of sdkserver must come here.".into(),
            why_backend: format!("Where sdkserver listens: {said}."),
        });
    }
    let next = port
        .checked_add(1)
        .ok_or("--backend is needed: sdkserver has the last port")?;
    let backend = arguments
        .backend
        .clone()
        .unwrap_or(format!("{reached}:{next}"));
    Ok(Placement {
        protocol: BackendProtocol::Socket,
        is_zvm: true,
        dialect: None,
        why_backend: format!("Where sdkserver must move: it listens at {own} today."),
        why_listen: format!("Where clients look for sdkserver: {said}."),
        moves_from: Some(own.clone()),
        listen: own,
        backend,
    })
}

/// In front of a backend that stays where it is, or of one that is already where it must be.
fn in_front(
    arguments: &InitArguments,
    answers: &mut Answers<'_>,
    protocol: BackendProtocol,
    is_zvm: bool,
) -> Result<Placement, String> {
    let usual = match (protocol, is_zvm) {
        (BackendProtocol::Socket, _) => Some("127.0.0.1:2001"),
        (BackendProtocol::Http, true) => Some("127.0.0.1:8080"),
        _ => None,
    };
    let backend = match &arguments.backend {
        Some(backend) => address(backend)?,
        None => {
            let question = Question {
                text: "Where does the backend listen, as HOST:PORT?",
                flag: "--backend",
                default: usual,
            };
            answers.ask(question, address)?
        }
    };
    let port = backend
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    let usual = match (protocol, is_zvm) {
        (BackendProtocol::Socket, _) => Some("127.0.0.1:2000".to_owned()),
        (BackendProtocol::Http, true) => Some("0.0.0.0:8081".to_owned()),
        _ => port
            .and_then(|it| it.checked_add(1))
            .map(|port| format!("127.0.0.1:{port}")),
    };
    let listen = match &arguments.listen {
        Some(listen) => address(listen)?,
        None => {
            let question = Question {
                text: "Where shall Tidegate listen, as ADDRESS:PORT?",
                flag: "--listen",
                default: usual.as_deref(),
            };
            answers.ask(question, address)?
        }
    };
    let reach = match listen.starts_with("127.") {
        true => "Clients on this machine reach it; write 0.0.0.0 for all clients.",
        false => "Clients must come here instead of to the backend.",
    };
    Ok(Placement {
        protocol,
        is_zvm,
        dialect: None,
        moves_from: None,
        listen,
        backend,
        why_listen: reach.into(),
        why_backend: "The server behind Tidegate.".into(),
    })
}

/// `host:port`, also with `http://` in front.
fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    let bare = text
        .strip_prefix("http://")
        .unwrap_or(text)
        .trim_end_matches('/');
    let is_sound = bare.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok_and(|it| it > 0)
    });
    match is_sound {
        true => Ok(bare.to_owned()),
        false => Err("write it as HOST:PORT, such as 127.0.0.1:8080".to_owned()),
    }
}

impl Placement {
    fn write(&self, draft: &mut Draft) {
        let text = |text: &str| Scalar::Text(text.to_owned());
        let name = match (self.protocol, self.is_zvm) {
            (BackendProtocol::Socket, _) => "sdkserver",
            (BackendProtocol::Http, true) => "sdkwsgi",
            _ => "main",
        };
        draft.set(LISTEN, "name", text(name), "Its name in logs and metrics.");
        draft.set(LISTEN, "bind", text(&self.listen), &*self.why_listen);
        let (protocol, backend) = match self.protocol {
            BackendProtocol::Socket => ("socket", self.backend.clone()),
            BackendProtocol::Http => ("http", format!("http://{}", self.backend)),
            BackendProtocol::Tcp => ("tcp", self.backend.clone()),
        };
        draft.set(
            LISTEN,
            "protocol",
            text(protocol),
            "Other protocols are refused.",
        );
        if self.protocol == BackendProtocol::Http {
            let (kind, why) = match (self.is_zvm, self.dialect) {
                (true, _) => ("zvm", "Its routes are those of sdkwsgi."),
                (false, Some(_)) => ("http", "Any server that is no z/VM SDK server."),
                (false, None) => ("http", "Its routes have no names; add them with [[route]]."),
            };
            draft.set(BACKEND, "kind", text(kind), why);
            if let Some(dialect) = self.dialect {
                let why = "Its calls are named in their messages: docs/how-to/rpc.md.";
                draft.set(BACKEND, "dialect", text(dialect.word()), why);
            }
        }
        draft.set(BACKEND, protocol, Scalar::Text(backend), &*self.why_backend);
    }

    /// Next steps with the config.
    fn next(&self, out: &Path) -> String {
        let path = out.display();
        let port = self.listen.rsplit(':').next().unwrap_or_default();
        let switch = match (self.protocol, self.is_zvm, &self.moves_from) {
            (_, _, Some(from)) => format!(
                "move sdkserver from {from} to {}, and start Tidegate at once: \
                 packaging/sdkserver-behind-tidegate.conf has the steps",
                self.backend
            ),
            (BackendProtocol::Http, true, _) => format!(
                "start it, then write in nova.conf on the compute node, section [zvm]: \
                 cloud_connector_url = http://SDK-HOST:{port}"
            ),
            _ => format!(
                "start it, then let clients come to port {port} instead of {}",
                self.backend
            ),
        };
        format!(
            "next:\n  1. tidegate check --config {path}\n  2. {switch}\n  3. after a day, ask again: \
             tidegate advise its access log"
        )
    }
}

/// The limits and the queue: first what is given, then what the file says, then the logs, then defaults.
fn limits(
    arguments: &InitArguments,
    answers: &mut Answers<'_>,
    place: &Placement,
    sdk: Option<&SdkServer>,
    learned: &FromLogs,
    draft: &mut Draft,
) -> Result<(), String> {
    const FROM_FILE: &str = "From zvmsdk.conf.";
    const AS_GIVEN: &str = "As given.";
    let unset = SdkServer::default();
    let sdk = sdk.unwrap_or(&unset);
    let from_file = |value: Option<u32>| {
        value.map(|value| LearnedValue {
            value: value.into(),
            why: FROM_FILE.into(),
        })
    };
    let given = arguments.at_once.map(|value| LearnedValue {
        value: value.into(),
        why: AS_GIVEN.into(),
    });
    let mut outstanding = given
        .or(from_file(sdk.outstanding))
        .or(learned.outstanding.clone())
        .unwrap_or(LearnedValue {
            value: OUTSTANDING,
            why: "The default: neither zvmsdk.conf nor a log gives a better number.".into(),
        });
    let workers = sdk.max_worker_count.map(u64::from).filter(|it| *it > 0);
    if let Some(workers) = workers.filter(|workers| outstanding.value > *workers) {
        outstanding = LearnedValue {
            value: workers,
            why: format!(
                "max_worker_count of zvmsdk.conf: sdkserver works on no more at once. Without it, {}: {}",
                outstanding.value, outstanding.why
            ),
        };
    }
    let names = Names::of(place);
    per_window(arguments, answers, sdk, learned, &names, draft)?;
    let at_once = outstanding.value;
    let number = Scalar::Number;
    draft.set(LIMITS, names.outstanding, number(at_once), outstanding.why);
    let max_wait = from_file(sdk.max_wait_seconds).or(learned.max_wait_seconds.clone());
    let of_zvm = LearnedValue {
        value: ZVM_WAIT.into(),
        why: "Below the 60 s after which the Apache of sdkwsgi gives up. And nova deletes a new guest \
              whose network is not ready after 300 s: 6 calls of the neutron agent wait 270 s at most \
              (6 × 45 s)."
            .into(),
    };
    if let Some(max_wait) = max_wait.or(place.is_zvm.then_some(of_zvm)) {
        let value = (names.time)(max_wait.value);
        draft.set(LIMITS, names.max_wait, value, max_wait.why);
    }
    postponing(place, draft);
    let queue = sdk.request_queue_size.filter(|it| *it > 0).map(u64::from);
    let deeper = learned
        .capacity
        .clone()
        .filter(|it| it.value > queue.unwrap_or(4096));
    match (deeper, queue) {
        (Some(deeper), _) => draft.set(QUEUE, "capacity", number(deeper.value), deeper.why),
        (None, Some(queue)) => {
            let why = "request_queue_size of zvmsdk.conf. Here a waiting call costs only memory, and \
                       the default is 4096: leave the line out for larger storms.";
            draft.set(QUEUE, "capacity", number(queue), why);
        }
        (None, None) => {}
    }
    if let Some(workers) = workers {
        let why = "max_worker_count of zvmsdk.conf.";
        draft.set(QUEUE, "workers", number(workers), why);
    } else if at_once > WORKERS {
        let why = format!("As many as {}.", names.outstanding);
        draft.set(QUEUE, "workers", number(at_once), why);
    }
    Ok(())
}

/// How calls are postponed, with the reason.
fn postponing(place: &Placement, draft: &mut Draft) {
    let (postpone, why) = match place.is_zvm {
        true => (
            "jitter",
            "As the design for sdkserver has it: a call that meets a closed limit is set aside for a random 1 to \
             3 s. \"in_turn\" keeps calls in order and waits less: docs/explanation/jitter-or-in-turn.md.",
        ),
        false => (
            "in_turn",
            "A call that meets a closed limit keeps its place and runs the moment the limit opens.",
        ),
    };
    draft.set(QUEUE, "postpone", Scalar::Text(postpone.to_owned()), why);
}

/// The names of the limits, and how a number of seconds is written: in front of z/VM as in
/// zvmsdk.conf.
struct Names {
    per_window: &'static str,
    window: &'static str,
    outstanding: &'static str,
    max_wait: &'static str,
    time: fn(u64) -> Scalar,
}

impl Names {
    const fn of(place: &Placement) -> Self {
        match place.is_zvm {
            true => Self {
                per_window: "smapi_rate_limit_per_window",
                window: "smapi_rate_limit_window_size_seconds",
                outstanding: "smapi_max_outstanding_requests",
                max_wait: "smapi_request_postpone_threshold_seconds",
                time: Scalar::Number,
            },
            false => Self {
                per_window: "per_window",
                window: "window",
                outstanding: "outstanding",
                max_wait: "max_wait",
                time: |seconds| Scalar::Text(show_duration(Duration::from_secs(seconds))),
            },
        }
    }
}

/// The window and the calls in it.
fn per_window(
    arguments: &InitArguments,
    answers: &mut Answers<'_>,
    sdk: &SdkServer,
    learned: &FromLogs,
    names: &Names,
    draft: &mut Draft,
) -> Result<(), String> {
    let is_off = sdk.window_seconds == Some(0) && arguments.per_window.is_none();
    if is_off {
        let why = "From zvmsdk.conf: no limit per window.";
        draft.set(LIMITS, names.window, (names.time)(0), why);
        return Ok(());
    }
    let window = sdk
        .window_seconds
        .filter(|it| *it > 0)
        .map(|seconds| LearnedValue {
            value: seconds.into(),
            why: "From zvmsdk.conf.".into(),
        });
    let of_log = learned
        .window_seconds
        .clone()
        .zip(learned.per_window.clone());
    let (window, per_window, why) = match (&arguments.per_window, &sdk.per_window, of_log) {
        (Some(given), _, _) => (window, given.clone(), "As given.".to_owned()),
        (None, Some(calls), _) => {
            let calls = PerWindow::Calls(calls.split_whitespace().collect::<Vec<_>>().join(" "));
            (window, calls, "From zvmsdk.conf.".to_owned())
        }
        // Both from the log: its number is for its own window.
        (None, None, Some((of_window, calls))) if window.is_none() => {
            let text = format!("total:{}", calls.value);
            (Some(of_window), PerWindow::Calls(text), calls.why)
        }
        _ => {
            let question = Question {
                text: "How many calls may start in each window of a second at most? A number, or off",
                flag: "--per-window",
                default: None,
            };
            let asked = answers.ask(question, str::parse)?;
            (window, asked, "As answered.".to_owned())
        }
    };
    match per_window {
        PerWindow::Off => {
            draft.set(
                LIMITS,
                names.window,
                (names.time)(0),
                "No limit per window.",
            );
        }
        PerWindow::Calls(calls) => {
            if let Some(window) = window {
                draft.set(LIMITS, names.window, (names.time)(window.value), window.why);
            }
            draft.set(LIMITS, names.per_window, Scalar::Text(calls), why);
        }
    }
    Ok(())
}

/// A note for root: who can read the config besides root.
fn note_of(readers: ConfigReaders, out: &Path) -> Option<String> {
    let path = out.display();
    let user = service_user::NAME;
    match readers {
        ConfigReaders::Owner => None,
        ConfigReaders::Service => Some(format!(
            "{path} can be read by root and by the group of {user}, the user of the service"
        )),
        ConfigReaders::Everyone => Some(format!(
            "{path} can be read by every user, since there is no user {user} for the service: put \
             no secret into it"
        )),
    }
}
