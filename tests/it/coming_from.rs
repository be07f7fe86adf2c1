//! `docs/how-to/coming-from.md`: every config of the page runs in front of a backend that fails when more than four calls
//! run at once, ours and those of the other programs.

mod fronts;
mod service;
mod table;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use self::fronts::{Front, Program};
use self::service::{Service, ServiceKind};
use crate::support::{PATIENCE, cannot_run, not_tried};

/// Calls at once that the service bears.
const AT_ONCE: u32 = 4;
const PAGE: &str = "docs/how-to/coming-from.md";

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    fs::read_to_string(path).expect("the page is there")
}

/// A program that readers come from, by the heading of its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    HaProxy,
    Nginx,
    Envoy,
    LlamaSwap,
    LiteLlm,
    Terraform,
}

impl Origin {
    const ALL: [Self; 6] = [
        Self::HaProxy,
        Self::Nginx,
        Self::Envoy,
        Self::LlamaSwap,
        Self::LiteLlm,
        Self::Terraform,
    ];

    fn heading(self) -> &'static str {
        match self {
            Self::HaProxy => "HAProxy: maxconn",
            Self::Nginx => "nginx: limit_req",
            Self::Envoy => "Envoy: local rate limit",
            Self::LlamaSwap => "llama-swap: concurrencyLimit",
            Self::LiteLlm => "LiteLLM: max_parallel_requests",
            Self::Terraform => "Terraform: -parallelism",
        }
    }

    /// The first block of a language in its section.
    fn block(self, language: &str) -> String {
        let page = page();
        let heading = format!("\n## {}\n", self.heading());
        let (_, section) = page.split_once(&heading).expect("a section of the page");
        let section = section.split("\n## ").next().expect("a section has a text");
        let fence = format!("```{language}\n");
        let (_, block) = section.split_once(&fence).expect("a block of the section");
        block.split("```").next().expect("a block ends").to_owned()
    }

    /// The kind of service that its config protects.
    fn service(self) -> ServiceKind {
        match self {
            Self::LlamaSwap | Self::LiteLlm => ServiceKind::ModelServer,
            _ => ServiceKind::Http,
        }
    }
}

/// How the calls of a load ended.
#[derive(Debug, Default)]
struct Outcome {
    /// Answered with 200.
    answered: u32,
    /// Answered with 429 or 503.
    refused: u32,
    /// Answered with another error, or not answered.
    failed: u32,
    took: Duration,
}

/// Clients that call one after the other until all calls are made.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: u32,
    calls: u32,
}

impl Load {
    /// As many clients as calls.
    fn burst(calls: u32) -> Self {
        let clients = calls;
        Self { clients, calls }
    }

    async fn run(self, addr: SocketAddr, request: &str) -> Outcome {
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for client in 0..self.clients {
            let calls = (client..self.calls).step_by(self.clients as usize).count();
            let request = request.to_owned();
            clients.spawn(async move {
                let mut statuses = Vec::new();
                for _ in 0..calls {
                    let called = tokio::time::timeout(PATIENCE, call(addr, &request));
                    statuses.push(called.await.ok().flatten());
                }
                statuses
            });
        }
        let statuses = clients.join_all().await.concat();
        let took = began.elapsed();
        let mut outcome = Outcome {
            took,
            ..Outcome::default()
        };
        for status in statuses {
            match status {
                Some(200) => outcome.answered += 1,
                Some(429 | 503) => outcome.refused += 1,
                _ => outcome.failed += 1,
            }
        }
        outcome
    }
}

/// The status of the answer, if there is a whole head.
pub(crate) async fn call(addr: SocketAddr, request: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let text = String::from_utf8_lossy(&answer);
    text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// A load on a program in front of a service, and what both saw.
async fn measure(front: Front, kind: ServiceKind, a_call: Duration, load: Load) -> Measured {
    let service = Service::start(kind, a_call).await;
    let running = front.start(service.addr()).await;
    let outcome = load.run(running.addr(), &service.request()).await;
    drop(running);
    Measured {
        outcome,
        peak: service.peak(),
        falls: service.falls(),
    }
}

#[derive(Debug)]
struct Measured {
    outcome: Outcome,
    /// The most calls at once at the service.
    peak: u32,
    /// How often the service fell.
    falls: u64,
}

impl Measured {
    #[track_caller]
    fn is_whole(&self, load: Load, about: &str) {
        assert_eq!(self.outcome.answered, load.calls, "{about}: {self:?}");
        assert_eq!(self.falls, 0, "{about}: {self:?}");
        assert!(self.peak <= AT_ONCE, "{about}: {self:?}");
    }
}

const CALL: Duration = Duration::from_millis(50);

#[tokio::test]
async fn with_each_config_of_the_page_every_call_of_a_burst_is_answered() {
    for origin in Origin::ALL {
        let load = match origin {
            // As Terraform calls by default.
            Origin::Terraform => Load {
                clients: 10,
                calls: 40,
            },
            _ => Load::burst(40),
        };
        let measured = measure(Front::Tidegate(origin), origin.service(), CALL, load).await;
        measured.is_whole(load, origin.heading());
        // Without a limit, the service falls under the same load.
        let bare = measure(Front::Nothing, origin.service(), CALL, load).await;
        assert!(bare.falls > 0 && bare.outcome.failed > 0, "{bare:?}");
    }
}

#[tokio::test]
async fn haproxy_keeps_the_limit_with_the_config_of_the_page() {
    if Program::HaProxy.version().await.is_none() {
        cannot_run("coming_from", "HAProxy is not installed: make faults-tools");
        return;
    }
    let load = Load::burst(40);
    let front = Front::Other(Program::HaProxy);
    let measured = measure(front, ServiceKind::Http, CALL, load).await;
    measured.is_whole(load, "HAProxy");
}

#[tokio::test]
async fn nginx_keeps_to_its_rate_and_not_to_calls_at_once() {
    if Program::Nginx.version().await.is_none() {
        return not_tried("coming_from", "nginx is not installed: make nginx-tools");
    }
    let load = Load::burst(30);
    let front = || Front::Other(Program::Nginx);
    let measured = measure(front(), ServiceKind::Http, CALL, load).await;
    let (refused, took) = (measured.outcome.refused, measured.outcome.took);
    // A call each thirtieth of a second, which its clock counts in milliseconds.
    assert!(
        refused == 0 && took > Duration::from_millis(900),
        "{measured:?}"
    );
    let slow = Duration::from_millis(400);
    let measured = measure(front(), ServiceKind::Http, slow, load).await;
    assert!(measured.falls > 0, "{measured:?}");
}

#[tokio::test]
async fn envoy_refuses_what_is_above_its_rate() {
    if Program::Envoy.version().await.is_none() {
        return not_tried("coming_from", "Envoy is not installed: make coming-from");
    }
    let front = Front::Other(Program::Envoy);
    let measured = measure(front, ServiceKind::Http, CALL, Load::burst(40)).await;
    assert!(measured.outcome.refused >= 20, "{measured:?}");
}
