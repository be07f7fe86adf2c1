//! Fronts of a service: nothing, Tidegate, or another program, each with its config of the page.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::Origin;
use crate::http_corpus::peers::{started, version};
use crate::sidecar::Sidecar;
use crate::support::{closed_port, until};

/// Where the service of the page listens.
const SERVICE: &str = "127.0.0.1:8080";
/// Where its limiters listen.
const LISTENS: &str = "0.0.0.0:8081";

/// Another program with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    HaProxy,
    Nginx,
    Envoy,
    /// With this many workers.
    LiteLlm(u32),
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::HaProxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::LiteLlm(_) => "litellm",
        }
    }

    /// The version; `None` if the program is not installed.
    pub(super) async fn version(self) -> Option<String> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut paths = std::env::split_paths(&folders).map(|it| it.join(self.name()));
        paths.find(|it| it.exists())?;
        let flag = match self {
            Self::HaProxy | Self::Nginx => "-v",
            Self::Envoy | Self::LiteLlm(_) => "--version",
        };
        Some(version(self.name(), flag).await)
    }

    /// The program's config of the page, in front of this service.
    fn config(self, addr: SocketAddr, service: SocketAddr, dir: &Path) -> String {
        let service = service.to_string();
        match self {
            Self::HaProxy => Origin::HaProxy
                .block("text")
                .replace(LISTENS, &addr.to_string())
                .replace(SERVICE, &service),
            // Files that a user who is not root can write.
            Self::Nginx => Origin::Nginx
                .block("text")
                .replace(LISTENS, &addr.to_string())
                .replace(SERVICE, &service)
                .replace(
                    "http {",
                    &format!(
                        "http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; \
                         fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;",
                        dir.display()
                    ),
                ),
            Self::Envoy => Origin::Envoy
                .block("yaml")
                .replace("0.0.0.0, port_value: 8081", &envoy(addr))
                .replace("127.0.0.1, port_value: 8080", &envoy(parsed(&service))),
            Self::LiteLlm(_) => Origin::LiteLlm.block("yaml").replace(SERVICE, &service),
        }
    }

    /// The command that starts the program.
    fn command(self, addr: SocketAddr, config: &Path, dir: &Path) -> Command {
        let mut command = match self {
            // Its log says when each worker is ready.
            Self::LiteLlm(_) => Command::new("sh"),
            _ => Command::new(self.name()),
        };
        match self {
            Self::HaProxy => command.arg("-f").arg(config),
            Self::Nginx => command
                .args(["-g", "daemon off; master_process off;"])
                .arg("-e")
                .arg(dir.join("error.log"))
                .arg("-p")
                .arg(dir)
                .arg("-c")
                .arg(config),
            Self::Envoy => command
                .args(["--use-dynamic-base-id", "--concurrency", "1", "-c"])
                .arg(config),
            Self::LiteLlm(workers) => command
                .args(["-c", "exec litellm \"$@\" >\"$LOG\" 2>&1", "sh"])
                .args(["--host", "127.0.0.1", "--port", &addr.port().to_string()])
                .args(["--num_workers", &workers.to_string(), "--config"])
                .arg(config)
                .env("LOG", dir.join("log"))
                .env("HOME", dir),
        };
        command
    }

    /// Waits until every worker is ready.
    async fn is_ready(self, dir: &Path) {
        let Self::LiteLlm(workers) = self else { return };
        let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
        let ready = || log().matches("Application startup complete").count() >= workers as usize;
        until(ready, log).await;
    }
}

fn envoy(addr: SocketAddr) -> String {
    format!("{}, port_value: {}", addr.ip(), addr.port())
}

fn parsed(addr: &str) -> SocketAddr {
    addr.parse().expect("an address")
}

/// A front of a service, before it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    Nothing,
    /// Tidegate, with the config of this section.
    Tidegate(Origin),
    Other(Program),
    /// Another program, and Tidegate between it and the service.
    Both(Program, Origin),
}

/// A front that runs, until it is dropped.
pub(super) struct RunningFront {
    addr: SocketAddr,
    _sidecar: Option<Sidecar>,
    _program: Option<(Child, TempDir)>,
}

impl RunningFront {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Front {
    pub(super) async fn start(self, service: SocketAddr) -> RunningFront {
        let mut running = RunningFront {
            addr: service,
            _sidecar: None,
            _program: None,
        };
        if let Self::Tidegate(origin) | Self::Both(_, origin) = self {
            let (sidecar, addr) = tidegate(origin, service).await;
            (running.addr, running._sidecar) = (addr, Some(sidecar));
        }
        if let Self::Other(program) | Self::Both(program, _) = self {
            let dir = TempDir::new().expect("a folder");
            let addr = closed_port();
            let path = dir.path().join("config.yaml");
            fs::write(&path, program.config(addr, running.addr, dir.path())).expect("it is ours");
            let command = program.command(addr, &path, dir.path());
            let child = started(command, &[addr.port()]).await;
            program.is_ready(dir.path()).await;
            (running.addr, running._program) = (addr, Some((child, dir)));
        }
        running
    }
}

/// Tidegate with the config of a section; only its addresses change.
async fn tidegate(origin: Origin, service: SocketAddr) -> (Sidecar, SocketAddr) {
    let config = origin.block("toml");
    let name = config.split("name = \"").nth(1).expect("a listener");
    let name = name.split('"').next().expect("a name").to_owned();
    let config = config
        .replace(LISTENS, "127.0.0.1:0")
        .replace(SERVICE, &service.to_string());
    let sidecar = Sidecar::start(&format!("{config}\n[admin]\nbind = \"127.0.0.1:0\"\n")).await;
    let addr = sidecar.listener(&name).await;
    (sidecar, addr)
}
