//! The calls of Terraform's provider for feilong, as its Go client writes them: thirty guests, ten at once.
//!
//! `tests/peers/terraform/requests.txt` has the bytes that feilong-client-go 0.1.5 sent, built with Go 1.19.8, for the calls that the
//! provider makes (terraform-provider-feilong at ebff24a: `Configure` in provider/provider.go, `Create` in
//! provider/feilong_guest.go). Only the host, the tokens and the userid are replaced. The client takes any status but 200 for
//! an error, and the provider gives up a guest at its first error. Terraform creates ten resources at once. The pause of five seconds
//! before the provider asks for the address of a guest is left out. The client itself, tried by hand in the same place, created 30 of 30
//! guests in 3.0 s, and 0 of 30 without Tidegate.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use super::stage::{ADMIN_TOKEN, Auth, Backend, Hop, Tidegate, Wsgi, alone};
use super::storm::densest_second;
use super::wire::Wire;

const REQUESTS: &str = include_str!("../../peers/terraform/requests.txt");
const GUESTS: usize = 30;
/// Terraform's default, `-parallelism=10`.
const PARALLELISM: usize = 10;
const PER_SECOND: usize = 60;
const AT_ONCE: usize = 5;
/// The functions of the requests for one guest.
const FUNCTIONS: [&str; 6] = [
    "guest_create",
    "guest_create_network_interface",
    "guest_nic_couple_to_vswitch",
    "guest_deploy",
    "guest_start",
    "guest_get_adapters_info",
];

/// A connection that is kept for the next request, as Go does it.
struct Connection {
    port: u16,
    wire: Option<Wire>,
}

impl Connection {
    fn to(port: u16) -> Self {
        Self { port, wire: None }
    }

    /// The head and the body of an answer with status 200. Anything else is the client's error.
    fn ask(&mut self, request: &str) -> Result<(String, String), String> {
        let (head, body) = request.split_once("\n\n").expect("a head and a body");
        let head = head.replace("HOST", &format!("127.0.0.1:{}", self.port));
        let bytes = format!("{}\r\n\r\n{body}", head.replace('\n', "\r\n"));
        let wire = self.wire.take().unwrap_or_else(|| Wire::to(self.port));
        let mut wire = wire.with(bytes.as_bytes());
        let (head, body) = wire.next_http();
        let fields = head.to_ascii_lowercase();
        if !fields.contains("\r\nconnection: close\r\n") {
            self.wire = Some(wire);
        }
        match head.starts_with("HTTP/1.1 200 ") {
            true => Ok((head, body)),
            false => Err(format!("{request}\n{head}{body}")),
        }
    }
}

/// The output in an answer, which the client decodes.
fn output(body: &str) -> Value {
    let answer: Value = serde_json::from_str(body).expect("an answer in JSON");
    answer["output"].clone()
}

/// The requests in the record: two of the provider, and those of a guest.
fn recorded() -> (Vec<&'static str>, Vec<&'static str>) {
    let mut requests = REQUESTS
        .split_terminator("\n----\n")
        .collect::<Vec<&'static str>>();
    let of_guest = requests.split_off(2);
    assert_eq!(of_guest.len(), FUNCTIONS.len());
    (requests, of_guest)
}

/// Logs in as the provider does, and returns the token.
fn configure(port: u16) -> String {
    let (provider, _) = recorded();
    let mut connection = Connection::to(port);
    let login = provider[0].replace("ADMIN", ADMIN_TOKEN);
    let (head, _) = connection.ask(&login).expect("a token");
    let field = "x-auth-token: ";
    let token = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with(field))
        .map(|line| line[field.len()..].to_owned())
        .expect("the answer has a token");
    let version = provider[1].replace("TOKEN", &token);
    let (_, body) = connection.ask(&version).expect("a version");
    assert_eq!(output(&body)["api_version"], "1.0");
    token
}

/// Creates one guest.
fn create(connection: &mut Connection, token: &str, userid: &str) -> Result<(), String> {
    for request in recorded().1 {
        let request = request.replace("TOKEN", token).replace("TERRA000", userid);
        let (_, body) = connection.ask(&request)?;
        if request.starts_with("POST /guests HTTP") {
            assert!(output(&body).is_array(), "the client reads a list: {body}");
        }
        if request.starts_with("GET ") {
            let address = &output(&body)["adapters"][0]["mac_ip_address"];
            assert!(address.is_string(), "the provider wants one: {body}");
        }
    }
    Ok(())
}

/// The errors of the guests that were not created.
fn apply(port: u16) -> Vec<String> {
    let token = configure(port);
    let (next, errors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..PARALLELISM {
            scope.spawn(|| {
                let mut connection = Connection::to(port);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= GUESTS {
                        return;
                    }
                    let created = create(&mut connection, &token, &format!("TERRA{number:03}"));
                    if let Err(error) = created {
                        errors.lock().expect("no thread panics").push(error);
                    }
                }
            });
        }
    });
    errors.into_inner().expect("no thread panics")
}

/// A backend that bears five at once. The first calls last until six are there.
fn backend(options: &[&str]) -> Backend {
    let at_once = format!("--breaks-above-at-once={AT_ONCE}");
    let per_second = format!("--breaks-above-per-second={}", PER_SECOND + AT_ONCE);
    Backend::start(&[&[&*at_once, &*per_second], options].concat())
}

#[test]
fn terraform_creates_thirty_of_thirty_guests() {
    let _alone = alone();
    let files = TempDir::new().expect("a temporary directory");
    let backend = backend(&[]);
    let wsgi = Wsgi::start(backend.port, files.path(), Auth::Token);
    let limits = format!(
        "[limits]\n\
         smapi_rate_limit_per_window = \"total:{PER_SECOND}\"\n\
         smapi_max_outstanding_requests = {AT_ONCE}\n\
         [queue]\n\
         postpone = \"in_turn\"\n"
    );
    let proxy = Tidegate::start(Hop::Http(wsgi.port), &limits);
    let began = Instant::now();
    let errors = apply(proxy.port);
    let took = began.elapsed();
    assert!(errors.is_empty(), "{} failed: {errors:#?}", errors.len());

    let seen = backend.seen();
    assert_eq!((seen.total, seen.breaks), (GUESTS * FUNCTIONS.len(), 0));
    assert!(seen.in_flight_peak <= AT_ONCE, "{seen:?}");
    assert!(seen.densest_window <= PER_SECOND + AT_ONCE, "{seen:?}");
    let mut calls = BTreeMap::new();
    for userid in backend.userids() {
        *calls.entry(userid).or_insert(0) += 1;
    }
    assert_eq!(calls.len(), GUESTS);
    assert!(calls.values().all(|it| *it == FUNCTIONS.len()), "{calls:?}");

    // The log names each call, also those that meet no limit: the token and the version.
    let log = proxy.log(seen.total + 2);
    for function in FUNCTIONS {
        let lines = log.iter().filter(|line| line.function == function);
        assert_eq!(lines.count(), GUESTS, "{function}");
    }
    let densest = densest_second(&log);
    assert!(densest <= PER_SECOND, "{densest} left within one second");
    println!(
        "{GUESTS} guests in {:.1} s; at the backend {} at once, {} in a second; {densest} left in a second",
        took.as_secs_f64(),
        seen.in_flight_peak,
        seen.densest_window,
    );
}

#[test]
fn without_tidegate_terraform_fails_to_create_some_guests() {
    let _alone = alone();
    let files = TempDir::new().expect("a temporary directory");
    let backend = backend(&[&format!("--together={}", AT_ONCE + 1)]);
    let wsgi = Wsgi::start(backend.port, files.path(), Auth::Token);
    let errors = apply(wsgi.port);
    let seen = backend.seen();
    assert!(seen.breaks > 0 && !errors.is_empty(), "{seen:?}");
    println!("{} of {GUESTS} guests failed", errors.len());
}
