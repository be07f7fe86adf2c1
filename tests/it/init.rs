//! `tidegate init`: a first config from zvmsdk.conf, from logs, and from answers.

use std::io::Cursor;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tidegate::classify::message::dialects::RpcDialect;
use tidegate::tools::check;
use tidegate::tools::init::{Answers, InitArguments, InitResult, init};
use tokio::process::Command;

use crate::sidecar::{Said, run, with_programs};

/// The defaults of the real file, with what an operator adds.
const SDK: &str = "\
[zvm]
zcc_userid = ZCC1
[sdkserver]
# the SDK server
bind_addr = 127.0.0.1
bind_port = 2000
request_queue_size = 256
max_worker_count = 48
";
const LIMITS: &str = "\
smapi_rate_limit_window_size_seconds = 2
smapi_rate_limit_per_window = total:30, guest_list:10
smapi_max_outstanding_requests = 8
smapi_request_postpone_threshold_seconds = 45
";

/// Arguments with an output of their own.
struct Case {
    dir: tempfile::TempDir,
    arguments: InitArguments,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("config.toml");
        Self {
            arguments: InitArguments {
                out,
                ..InitArguments::default()
            },
            dir,
        }
    }

    fn with_sdk(text: &str) -> Self {
        let mut case = Self::new();
        let path = case.dir.path().join("zvmsdk.conf");
        std::fs::write(&path, text).expect("it can be written to");
        case.arguments.zvmsdk_conf = Some(path);
        case
    }

    /// Without a terminal.
    fn made(&self) -> Result<InitResult, String> {
        init(&self.arguments, &mut Answers::Flags)
    }

    /// With a person who types this; also what is shown.
    fn typed(&self, typed: &str) -> (Result<InitResult, String>, String) {
        let mut input = Cursor::new(typed.as_bytes());
        let mut output = Vec::new();
        let mut answers = Answers::Terminal {
            input: &mut input,
            output: &mut output,
        };
        let done = init(&self.arguments, &mut answers);
        (done, String::from_utf8(output).expect("text"))
    }

    /// `tidegate check` of the file that was written, which must have nothing to say.
    fn checked(&self) -> String {
        let report = check::report(&self.arguments.out, false);
        assert!(
            report.good && report.problems.is_empty(),
            "{}",
            report.problems
        );
        std::fs::read_to_string(&self.arguments.out).expect("it was written")
    }
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|it| it == *line),
            "no `{line}` in:\n{text}"
        );
    }
}

#[test]
fn the_values_of_zvmsdk_conf_are_carried_over() {
    let case = Case::with_sdk(&format!("{SDK}{LIMITS}"));
    let done = case.made().expect("all is there");
    has(
        &case.checked(),
        &[
            "bind = \"127.0.0.1:2000\"",
            "socket = \"127.0.0.1:2001\"",
            "smapi_rate_limit_window_size_seconds = 2",
            "smapi_rate_limit_per_window = \"total:30, guest_list:10\"",
            "smapi_max_outstanding_requests = 8",
            "smapi_request_postpone_threshold_seconds = 45",
            "postpone = \"jitter\"",
            "capacity = 256",
            "workers = 48",
        ],
    );
    let next = done.notes.join("\n");
    assert!(
        next.contains("move sdkserver from 127.0.0.1:2000 to 127.0.0.1:2001"),
        "{next}"
    );
}

#[test]
fn a_limit_per_window_is_never_invented() {
    let mut case = Case::with_sdk(SDK);
    let why = case.made().expect_err("no limit per window");
    assert!(why.contains("--per-window"), "{why}");
    assert!(!case.arguments.out.exists());
    case.arguments.per_window = Some("25".parse().expect("a number"));
    case.made().expect("all is there");
    let text = case.checked();
    has(
        &text,
        &[
            "smapi_rate_limit_per_window = \"total:25\"",
            "smapi_max_outstanding_requests = 10",
        ],
    );
    let mut case = Case::with_sdk(SDK);
    case.arguments.per_window = Some("off".parse().expect("off"));
    case.made().expect("all is there");
    has(
        &case.checked(),
        &["smapi_rate_limit_window_size_seconds = 0"],
    );
}

#[test]
fn more_at_once_than_sdkserver_has_workers_is_lowered() {
    let case = Case::with_sdk(
        "[sdkserver]\nmax_worker_count = 4\nsmapi_max_outstanding_requests = 8\n\
         smapi_rate_limit_per_window = total:30\n",
    );
    case.made().expect("all is there");
    has(
        &case.checked(),
        &["smapi_max_outstanding_requests = 4", "workers = 4"],
    );
}

#[test]
fn a_listener_elsewhere_leaves_sdkserver_where_it_is() {
    let mut case = Case::with_sdk(&format!("{SDK}{LIMITS}"));
    case.arguments.listen = Some("127.0.0.1:2100".into());
    case.made().expect("all is there");
    has(
        &case.checked(),
        &["bind = \"127.0.0.1:2100\"", "socket = \"127.0.0.1:2000\""],
    );
}

#[test]
fn a_file_that_stops_sdkserver_is_refused_with_its_line() {
    for (text, says) in [
        ("[a]\nx = 1\nx = 2\n", "line 3: x is there twice"),
        ("[a]\n[a]\n", "line 2: the section [a] is there twice"),
        (
            "[logging]\nformat = %H\n",
            "line 2: the value of format has a %",
        ),
    ] {
        let case = Case::with_sdk(text);
        let why = case.made().expect_err("sdkserver does not start");
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn http_in_front_of_the_sdk_server_names_novas_option() {
    let mut case = Case::with_sdk(&format!("{SDK}{LIMITS}"));
    case.arguments.protocol = Some(tidegate::tools::init::BackendProtocol::Http);
    let (done, _) = case.typed("\n\n\n");
    has(
        &case.checked(),
        &[
            "bind = \"0.0.0.0:8081\"",
            "kind = \"zvm\"",
            "http = \"http://127.0.0.1:8080\"",
        ],
    );
    let next = done.expect("it is written").notes.join("\n");
    assert!(
        next.contains("cloud_connector_url = http://SDK-HOST:8081"),
        "{next}"
    );
}

#[test]
fn another_backend_needs_a_few_answers() {
    let case = Case::new();
    let (done, shown) = case.typed("http\nhttp\nhttp://10.0.0.5:9000/\n\nmany\n0\n20\nyes\n");
    done.expect("it is written");
    has(
        &case.checked(),
        &[
            "bind = \"127.0.0.1:9001\"",
            "kind = \"http\"",
            "http = \"http://10.0.0.5:9000\"",
            "per_window = \"total:20\"",
            "postpone = \"in_turn\"",
        ],
    );
    assert!(shown.contains("is not a number above 0"), "{shown}");
    let case = Case::new();
    case.typed("tcp\n10.0.0.5:9000\n\noff\n\n")
        .0
        .expect("it is written");
    has(
        &case.checked(),
        &["protocol = \"tcp\"", "tcp = \"10.0.0.5:9000\""],
    );
}

#[test]
fn a_dialect_needs_addresses_and_a_limit_alone() {
    let mut case = Case::new();
    case.arguments.dialect = Some(RpcDialect::Xapi);
    case.arguments.backend = Some("127.0.0.1:80".to_owned());
    case.arguments.listen = Some("0.0.0.0:8081".to_owned());
    case.arguments.per_window = Some("total:30, VM.start:5".parse().expect("calls"));
    case.made().expect("nothing is missing");
    let text = case.checked();
    has(&text, &["kind = \"http\"", "dialect = \"xapi\""]);
    let report = check::report(&case.arguments.out, false);
    for example in [
        r#"POST /jsonrpc {"method":"VM.start"} is VM.start"#,
        r#"{"method":"VM.start","method":"VM.start"} is any function, so it meets the limits of each"#,
        r#"[{"method":"VM.start"},{"method":"VM.start"}] is 2 calls of VM.start"#,
    ] {
        assert!(report.settings.contains(example), "{}", report.settings);
    }
}

#[test]
fn a_person_can_say_no() {
    let case = Case::with_sdk(&format!("{SDK}{LIMITS}"));
    let (done, shown) = case.typed("\nno\n");
    assert_eq!(done, Err("nothing was written".to_owned()));
    assert_eq!(done, Err("nothing was written".to_owned()));
    assert!(
        shown.contains("smapi_max_outstanding_requests = 8"),
        "{shown}"
    );
    assert!(!case.arguments.out.exists());
    // Nor does a terminal that closes, or one that never gives an answer, write anything.
    assert!(case.typed("\nwhat\nwhat\nwhat\nyes\n").0.is_err());
    assert!(Case::new().typed("").0.is_err());
    assert!(!case.arguments.out.exists());
}

#[test]
fn a_file_is_replaced_only_by_force() {
    let mut case = Case::with_sdk(&format!("{SDK}{LIMITS}"));
    std::fs::write(&case.arguments.out, "mine").expect("it can be written to");
    let why = case.made().expect_err("it is there");
    assert!(why.contains("--force"), "{why}");
    let kept = std::fs::read_to_string(&case.arguments.out).expect("it is there");
    assert_eq!(kept, "mine");
    case.arguments.force = true;
    case.made().expect("it is replaced");
    case.checked();
    let mode = std::fs::metadata(&case.arguments.out)
        .expect("it is there")
        .permissions()
        .mode();
    // The service must be able to read what root writes, also if no user is there for it.
    let allowed = match rustix::process::geteuid().is_root() {
        true => 0o644,
        false => 0o640,
    };
    assert_eq!(mode & 0o777 & !allowed, 0, "{mode:o}");
    let files = std::fs::read_dir(case.dir.path())
        .expect("a directory")
        .count();
    assert_eq!(files, 2, "nothing is left beside it");
}

/// Runs the program, without a terminal.
async fn program(dir: &Path, arguments: &[&str]) -> Said {
    let mut command = Command::new(with_programs());
    run(command.current_dir(dir).arg("init").args(arguments)).await
}

#[tokio::test]
async fn without_a_terminal_a_missing_answer_names_its_flag() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (arguments, flag) in [
        (&["--out", "-"][..], "--protocol"),
        (&["--out", "-", "--protocol", "tcp"], "--backend"),
        (&["--out", "-", "--protocol", "socket"], "--per-window"),
    ] {
        let said = program(dir.path(), arguments).await;
        assert_eq!(said.code, Some(1));
        assert!(
            said.out.is_empty() && said.err.contains(flag),
            "{}",
            said.err
        );
    }
    let said = program(
        dir.path(),
        &[
            "--out",
            "-",
            "--protocol",
            "tcp",
            "--backend",
            "10.0.0.5:9000",
            "--per-window",
            "5",
        ],
    )
    .await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("tcp = \"10.0.0.5:9000\""), "{}", said.out);
}

#[tokio::test]
async fn a_log_that_is_not_enough_leaves_the_defaults_and_says_what_is_missing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/foreign_logs/apache-usec.log");
    let log = log.to_str().expect("a path in UTF-8");
    let said = program(
        dir.path(),
        &[
            "--protocol",
            "http",
            "--log",
            log,
            "--per-window",
            "20",
            "--out",
            "made.toml",
        ],
    )
    .await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("not enough in the log"), "{}", said.err);
    let text = std::fs::read_to_string(dir.path().join("made.toml")).expect("it was written");
    // The paths of the log are those of sdkwsgi.
    has(
        &text,
        &["kind = \"zvm\"", "smapi_max_outstanding_requests = 10"],
    );
}
