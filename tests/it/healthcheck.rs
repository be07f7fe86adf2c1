//! `tidegate healthcheck`, with the real admin address and without a sidecar.

use crate::support::PATIENCE;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tidegate::admin::{
    self, AdminSource, BucketState, Frame, LimitState, NowState, QueueState, QuotasState,
    SeriesSpan, SeriesState, Token,
};
use tidegate::tools::healthcheck::{HealthError, ask};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A sidecar that is ready, or draining.
#[derive(Default)]
struct Sidecar {
    draining: AtomicBool,
}

impl AdminSource for Sidecar {
    fn limits(&self) -> Vec<LimitState> {
        Vec::new()
    }

    fn buckets(&self) -> Vec<BucketState> {
        Vec::new()
    }

    fn queue(&self) -> QueueState {
        unreachable!("health looks at no queue")
    }

    fn quotas(&self, _: usize) -> QuotasState {
        unreachable!("health looks at no quota")
    }

    fn config(&self) -> String {
        String::new()
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::SeqCst) {
            Err("draining".to_owned())
        } else {
            Ok(())
        }
    }

    fn connections_max(&self) -> usize {
        64
    }

    fn notices(&self) -> Vec<String> {
        unreachable!("health looks at no notice")
    }

    fn now(&self) -> NowState {
        unreachable!("health looks at no moment")
    }

    fn series(&self, _: SeriesSpan) -> SeriesState {
        unreachable!("health looks at no series")
    }

    fn frame(&self) -> Frame {
        unreachable!("health looks at no frame")
    }

    fn frames(&self) -> watch::Receiver<Option<Bytes>> {
        unreachable!("health looks at no frame")
    }
}

async fn start() -> (SocketAddr, Arc<Sidecar>, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let sidecar = Arc::new(Sidecar::default());
    let stop = CancellationToken::new();
    let settings = admin::AdminSettings {
        bind: None,
        token: Some(Token("s3cret".into())),
        tokens: [].into(),
        socket: None,
        allowed_hosts: [].into(),
    };
    let source: Arc<dyn AdminSource> = Arc::clone(&sidecar) as _;
    let callers = Arc::new(crate::api::fake::Fake::new());
    tokio::spawn(admin::serve(
        admin::Inlet::Tcp(listener),
        settings,
        source,
        callers,
        stop.clone(),
    ));
    (address, sidecar, stop.drop_guard())
}

async fn asked(address: SocketAddr) -> Result<(), HealthError> {
    spawn_blocking(move || ask(address))
        .await
        .expect("no panic")
}

#[tokio::test]
async fn it_asks_for_readiness_and_needs_no_token() {
    let (address, sidecar, _stop) = start().await;
    asked(address).await.expect("it is ready");
    sidecar.draining.store(true, Ordering::SeqCst);
    let told = asked(address).await.expect_err("it drains").to_string();
    assert!(told.contains("draining"), "{told}");
}

#[tokio::test]
async fn an_address_that_is_bound_everywhere_is_asked_on_loopback() {
    let (address, _sidecar, _stop) = start().await;
    let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
    asked(everywhere).await.expect("it is ready");
}

#[tokio::test]
async fn a_missing_sidecar_is_reported_at_once() {
    let told = asked(crate::support::closed_port()).await;
    assert!(
        matches!(told, Err(HealthError::NoAnswer { .. })),
        "{told:?}"
    );
}

#[tokio::test]
async fn one_that_says_nothing_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let told = tokio::time::timeout(PATIENCE, asked(address)).await;
    let told = told.expect("it gives up");
    assert!(
        matches!(told, Err(HealthError::NoAnswer { .. })),
        "{told:?}"
    );
    drop(listener);
}

#[tokio::test]
async fn the_command_says_it_with_its_exit_code() {
    let (address, sidecar, _stop) = start().await;
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["healthcheck", "--admin", &address.to_string()]);
        spawn_blocking(move || {
            let output = command.output().expect("it runs");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), told)
        })
    };
    let (code, told) = command().await.expect("no panic");
    assert_eq!((code, &*told), (Some(0), ""));
    sidecar.draining.store(true, Ordering::SeqCst);
    let (code, told) = command().await.expect("no panic");
    assert_eq!(code, Some(1));
    assert!(told.contains("draining"), "{told}");
}
