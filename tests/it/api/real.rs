//! Tests of the API before the real process, with at least one item of every kind.

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::send;
use crate::sidecar::{Sidecar, field};
use crate::support::{Answer, Scripted, ask};

/// A process that has a caller of its config, `c1`, and one that registered itself, `c2`.
pub(super) struct Real {
    pub(super) sidecar: Sidecar,
    /// A call that has ended, as its access line names it.
    pub(super) call: String,
    _backend: Scripted,
    _folder: TempDir,
}

impl Real {
    pub(super) async fn start() -> Self {
        let backend = Scripted::in_both_dialects().await;
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!(
            r#"
            [[listen]]
            name = "nova"
            bind = "127.0.0.1:0"
            [[listen]]
            name = "nova-poll"
            bind = "127.0.0.1:0"
            [backend]
            socket = "{0}"
            kind = "zvm"
            http = "http://{0}"
            [limits]
            per_window = "total:10000"
            [callers]
            trusted_proxies = ["127.0.0.1"]
            state_file = "{1}/callers.json"
            [profiles]
            interactive = {{ burst = 200, fill = 20 }}
            poller = {{ burst = 30, fill = 3 }}
            [[caller]]
            label = "poller"
            match = {{ listener = "nova-poll" }}
            groups = ["polling"]
            [costs.functions]
            guest_start = 20
            [admin]
            bind = "127.0.0.1:0"
            [log]
            format = "json"
            "#,
            backend.addr,
            folder.path().display(),
        );
        // Without a place for a ledger, so that a request to upgrade it is refused.
        let sidecar = Sidecar::start_with(&text, |binary| {
            let mut command = Command::new(binary);
            command.env("TIDEGATE_RUNTIME_DIR", "/dev/null/no-folder");
            command
        })
        .await;
        let listener = sidecar.listener("nova").await;
        let request = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
                       X-Forwarded-For: 10.9.9.9\r\nUser-Agent: curl/8.5\r\n\r\n";
        let answer = ask(listener, request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let line = sidecar.log().wait(&["\"access\"", "guest_list"]).await;
        Self {
            call: field(&line, "id"),
            sidecar,
            _backend: backend,
            _folder: folder,
        }
    }

    /// A process in which there are also a caller `c3`, made here, and a rate limit `r1` of both.
    pub(super) async fn filled() -> Self {
        let real = Self::start().await;
        for (path, body) in super::document::FILLED {
            let body: Value = serde_json::from_str(body).expect("JSON");
            let answer = real.ask("POST", path, &body).await;
            assert_eq!(answer.status, 201, "{answer:?}");
        }
        real
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let admin = self.sidecar.admin;
        send(admin, method, path, super::JSON, body.as_bytes()).await
    }

    /// Everything that can be changed, to be compared.
    pub(super) async fn everything(&self) -> Value {
        let mut all = json!({});
        for path in ["/v1/callers?limit=10000", "/v1/rate-limits", "/v1/costs"] {
            let answer = send(self.sidecar.admin, "GET", path, "", b"").await;
            all[path] = answer.json();
        }
        all
    }

    /// Ends it, which must go well, and finds no word of a bug in its log.
    pub(super) async fn ended_well(self) {
        self.sidecar.signal("TERM");
        let (status, log) = self.sidecar.ended().await;
        assert!(status.success(), "{status}");
        let bad = log
            .iter()
            .find(|line| line.contains("panic") || line.contains("\"level\":\"ERROR\""));
        assert_eq!(bad, None);
    }
}
