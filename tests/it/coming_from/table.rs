//! The table of the page: a burst on each program, and Terraform itself.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::fronts::{Front, Program};
use super::service::{RECOVER, Service, ServiceKind};
use super::{AT_ONCE, Load, Measured, Origin, Outcome, PAGE, measure, page};
use crate::http_corpus::peers::version;
use crate::sidecar::run;

const CALLS: u32 = 100;
const HEADING: &str = "## What was measured\n";

struct Table {
    rows: String,
    versions: Vec<String>,
}

impl Table {
    fn add(&mut self, front: &str, a_call: Duration, measured: &Measured) {
        let Measured {
            outcome,
            peak,
            falls,
        } = measured;
        let row = format!(
            "| {front} | {:.1} s | {} | {} | {} | {peak} | {falls} | {:.1} s |",
            a_call.as_secs_f64(),
            outcome.answered,
            outcome.refused,
            outcome.failed,
            outcome.took.as_secs_f64(),
        );
        println!("{row}");
        writeln!(self.rows, "{row}").expect("a string takes it");
    }

    async fn burst(&mut self, name: &str, front: Front, kind: ServiceKind, millis: u64) {
        let a_call = Duration::from_millis(millis);
        let measured = measure(front, kind, a_call, Load::burst(CALLS)).await;
        self.add(name, a_call, &measured);
    }

    /// The rows of a program with a limit, if it is installed.
    async fn program(&mut self, name: &str, program: Program, kind: ServiceKind, millis: u64) {
        match program.version().await {
            Some(version) => {
                let said = format!("{} {version}", name.split(',').next().unwrap_or(name));
                if !self.versions.contains(&said) {
                    self.versions.push(said);
                }
                self.burst(name, Front::Other(program), kind, millis).await;
            }
            None => println!("{name}: not installed"),
        }
    }
}

/// Runs Terraform with a hundred resources, each of which is one call.
async fn terraform(front: Front, parallelism: &[&str], a_call: Duration) -> Measured {
    let service = Service::start(ServiceKind::Http, a_call).await;
    let running = front.start(service.addr()).await;
    let dir = tempfile::tempdir().expect("a folder");
    let resources = format!(
        "resource \"terraform_data\" \"call\" {{\n  count = {CALLS}\n  provisioner \"local-exec\" {{\n    \
         command = \"curl -fsS -o /dev/null http://{}/guests/G1/info\"\n  }}\n}}\n",
        running.addr()
    );
    fs::write(dir.path().join("main.tf"), resources).expect("it is ours");
    let command = |arguments: &[&str]| {
        let mut command = Command::new("terraform");
        command.args(arguments).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).kill_on_drop(true);
        command
    };
    let init = command(&["init"]).status().await;
    assert!(init.expect("it is installed").success(), "terraform init");
    let began = Instant::now();
    let apply = [&["apply", "-auto-approve"], parallelism].concat();
    command(&apply).status().await.expect("it runs");
    let took = began.elapsed();
    let answered = u32::try_from(service.answered()).expect("a hundred at most");
    Measured {
        outcome: Outcome {
            answered,
            refused: 0,
            failed: CALLS - answered,
            took,
        },
        peak: service.peak(),
        falls: service.falls(),
    }
}

async fn rows() -> Table {
    let mut table = Table {
        rows: String::new(),
        versions: Vec::new(),
    };
    let http = ServiceKind::Http;
    for millis in [100, 300] {
        table.burst("nothing", Front::Nothing, http, millis).await;
        for (name, program, origin) in [
            ("HAProxy, `maxconn 4`", Program::HaProxy, Origin::HaProxy),
            ("nginx, `limit_req` 30 r/s", Program::Nginx, Origin::Nginx),
            ("Envoy, local rate limit", Program::Envoy, Origin::Envoy),
        ] {
            table.program(name, program, http, millis).await;
            let own = match origin {
                Origin::HaProxy => "Tidegate, `outstanding = 4`",
                Origin::Nginx => "Tidegate, `total:30` and `outstanding = 4`",
                _ => continue,
            };
            table
                .burst(own, Front::Tidegate(origin), http, millis)
                .await;
        }
    }
    let models = ServiceKind::ModelServer;
    let own = Origin::LiteLlm;
    table
        .burst("a model server, nothing", Front::Nothing, models, 100)
        .await;
    for workers in [1, 3] {
        let limit = match workers {
            1 => "LiteLLM, `max_parallel_requests: 4`".to_owned(),
            _ => format!("LiteLLM, the same with {workers} workers"),
        };
        let program = Program::LiteLlm(workers);
        table.program(&limit, program, models, 100).await;
    }
    table
        .burst(
            "a model server, Tidegate",
            Front::Tidegate(own),
            models,
            100,
        )
        .await;
    let three = Program::LiteLlm(3);
    if three.version().await.is_some() {
        let name = "LiteLLM with 3 workers, Tidegate behind it";
        table
            .burst(name, Front::Both(three, own), models, 100)
            .await;
    }
    table.versions.push(format!(
        "Terraform {}",
        version("terraform", "version").await
    ));
    let a_call = Duration::from_millis(100);
    for (name, front, parallelism) in [
        ("Terraform", Front::Nothing, &[] as &[&str]),
        (
            "Terraform, `-parallelism=1`",
            Front::Nothing,
            &["-parallelism=1"],
        ),
        (
            "Terraform, Tidegate",
            Front::Tidegate(Origin::Terraform),
            &[],
        ),
    ] {
        let measured = terraform(front, parallelism, a_call).await;
        table.add(name, a_call, &measured);
    }
    table
}

/// The machine, in a few words.
async fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = cpus.lines().filter_map(|it| it.strip_prefix("model name"));
    let model = models.next().map_or("a processor", |it| {
        it.trim_start_matches(['\t', ' ', ':']).trim()
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let date = run(Command::new("date").arg("+%F")).await.out;
    format!("{}, {model}, {cores} cores", date.trim())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "`make coming-from` runs it, and writes the table of docs/how-to/coming-from.md"]
async fn the_table() {
    let Table { rows, versions } = rows().await;
    let mut text = page();
    let end = text.find(HEADING).expect("the section") + HEADING.len();
    text.truncate(end);
    write!(
        text,
        "\nWritten by `make coming-from`: {}, loopback only, a debug build of Tidegate. {}. llama-swap was not run: no registry that the \
         tests use has its program.\n\n\
         {CALLS} calls at once to a service that falls when more than {AT_ONCE} run at once, and then fails every call for {} s. The configs \
         are those above. Terraform makes {CALLS} resources, each with one call by curl. \"Refused\" is 429 or 503; \"failed\" is any other error.\n\
         A window of Tidegate without a ledger, as at this first start, lets the first call go after its length, which is 1 s of the time.\n\n\
         | in front of the service | a call takes | answered | refused | failed | most at once at the service | it fell | all in |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n{rows}\n",
        machine().await,
        versions.join(", "),
        RECOVER.as_secs(),
    )
    .expect("a string takes it");
    let text = text.trim_end().to_owned() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    fs::write(path, text).expect("the docs can be written to");
}
