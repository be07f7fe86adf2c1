//! Reports the state of the process to the service manager that started it, where it asks for
//! that (`Type=notify` in systemd).
//!
//! A service manager that cannot be reached changes nothing: the process runs on.

use sd_notify::NotifyState;

/// It serves, also after a reload.
pub(super) fn ready() {
    report(&[NotifyState::Ready]);
}

/// It reads its config again. [`ready`] ends that, whether the new config was taken or refused.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    // systemd asks for the time from version 253 on.
    states.extend(NotifyState::monotonic_usec_now());
    report(&states);
}

/// It drains.
pub(super) fn stopping() {
    report(&[NotifyState::Stopping]);
}

fn report(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot report to the service manager");
    }
}
