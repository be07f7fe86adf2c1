//! Reports the state of the process to the service manager that started it, if that wants it
//! (`Type=notify` in systemd).
//!
//! If the service manager cannot be reached, the process continues.

use sd_notify::NotifyState;

/// It serves, also after a reload.
pub(super) fn ready() {
    report(&[NotifyState::Ready]);
}

/// It reads its config again. [`ready`] ends that, also if the new config was refused.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    // systemd requires the time since version 253.
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
