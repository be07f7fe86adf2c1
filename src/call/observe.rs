//! The interface between calls and their observers: logs and metrics.

use std::error::Error;
use std::sync::Weak;

use super::{Destination, Facts, Identity, Record, Rejection, TlsCause};

/// Observer of calls, of connections without a call, and of connections to backends.
///
/// No method has a default: an observer that wraps another must forward each of them, or the other misses
/// what happened.
pub trait Observe: Send + Sync {
    /// An id for a call that has arrived.
    fn next_id(&self) -> u64;

    /// A call with this id has arrived.
    fn call_began(&self, id: u64, record: Weak<Record>);

    /// The backend is done with a call, and the answer is not written yet.
    fn backend_finished(&self);

    /// Whether a sampled call becomes a span.
    fn keeps_spans(&self) -> bool;

    /// A call has ended. Each call is reported once.
    fn call_ended(&self, facts: &Facts);

    /// The process lacks descriptors, ports or memory for a connection to a backend. The call
    /// tries again.
    fn lacked_resources(&self, backend: Destination, cause: &(dyn Error + 'static));

    /// No TLS connection to a backend was made, or the backend refused it after the handshake.
    fn tls_failed(&self, backend: Destination, cause: TlsCause);

    /// A client's connection was closed before its first request.
    fn connection_rejected(&self, identity: &Identity, rejection: Rejection);
}

/// Observer that ignores everything.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observe for NoObserver {
    fn next_id(&self) -> u64 {
        0
    }

    fn call_began(&self, _: u64, _: Weak<Record>) {}

    fn backend_finished(&self) {}

    fn keeps_spans(&self) -> bool {
        false
    }

    fn call_ended(&self, _: &Facts) {}

    fn lacked_resources(&self, _: Destination, _: &(dyn Error + 'static)) {}

    fn tls_failed(&self, _: Destination, _: TlsCause) {}

    fn connection_rejected(&self, _: &Identity, _: Rejection) {}
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;
    use std::sync::{Arc, Mutex};

    use tidegate_limits::Timestamp;
    use tidegate_runtime::lock;

    use super::*;
    use crate::call::{Dialect, Origin, Peer};

    /// Names of the methods that were called.
    #[derive(Default)]
    pub(crate) struct MethodLog(Mutex<Vec<&'static str>>);

    impl MethodLog {
        fn note(&self, method: &'static str) {
            lock(&self.0).push(method);
        }

        pub(crate) fn take(&self) -> Vec<&'static str> {
            std::mem::take(&mut *lock(&self.0))
        }
    }

    impl Observe for MethodLog {
        fn next_id(&self) -> u64 {
            self.note("next_id");
            7
        }

        fn call_began(&self, id: u64, _: Weak<Record>) {
            assert_eq!(id, 7);
            self.note("call_began");
        }

        fn backend_finished(&self) {
            self.note("backend_finished");
        }

        fn keeps_spans(&self) -> bool {
            self.note("keeps_spans");
            true
        }

        fn call_ended(&self, facts: &Facts) {
            assert_eq!(facts.id, 7);
            self.note("call_ended");
        }

        fn lacked_resources(&self, backend: Destination, _: &(dyn Error + 'static)) {
            assert_eq!(backend, Destination::Http);
            self.note("lacked_resources");
        }

        fn tls_failed(&self, backend: Destination, cause: TlsCause) {
            assert_eq!((backend, cause), (Destination::Socket, TlsCause::Expired));
            self.note("tls_failed");
        }

        fn connection_rejected(&self, _: &Identity, rejection: Rejection) {
            assert_eq!(rejection, Rejection::NotTls);
            self.note("connection_rejected");
        }
    }

    fn identity() -> Identity {
        let peer = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 1)));
        Identity::without_names("test".into(), peer)
    }

    /// Facts of a call with the id 7.
    fn facts() -> Facts {
        let origin = Origin {
            identity: Arc::new(identity()),
            arrived: Timestamp::ZERO,
        };
        let mut facts = Facts::begun(origin, Dialect::Http, "x".into(), "default".into(), None);
        facts.id = 7;
        facts
    }

    /// Calls each method once, in the order of the trait.
    pub(crate) fn call_every_method(observer: &dyn Observe) {
        assert_eq!(observer.next_id(), 7);
        observer.call_began(7, Weak::new());
        observer.backend_finished();
        assert!(observer.keeps_spans());
        observer.call_ended(&facts());
        observer.lacked_resources(Destination::Http, &std::fmt::Error);
        observer.tls_failed(Destination::Socket, TlsCause::Expired);
        observer.connection_rejected(&identity(), Rejection::NotTls);
    }

    /// Names of the methods of [`Observe`], as its source has them.
    pub(crate) fn every_method() -> Vec<&'static str> {
        let source = include_str!("observe.rs");
        let (_, body) = source.split_once("pub trait Observe").expect("the trait");
        let (body, _) = body.split_once("\n}\n").expect("an end");
        let methods = body.lines().filter_map(|line| {
            let (name, _) = line.trim().strip_prefix("fn ")?.split_once('(')?;
            Some(name)
        });
        methods.collect()
    }

    #[test]
    fn the_test_of_decorators_calls_every_method() {
        let log = MethodLog::default();
        call_every_method(&log);
        assert_eq!(log.take(), every_method());
    }
}
