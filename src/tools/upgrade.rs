//! `tidegate upgrade`: a running sidecar starts its program anew, and hands over to it.

use std::process::ExitCode;

use serde_json::json;

use super::client::{Admin, figure, print};

/// The arguments of `tidegate upgrade`.
#[derive(Debug, clap::Args)]
pub(crate) struct UpgradeArguments {
    #[command(flatten)]
    admin: Admin,
}

/// Upgrades a running sidecar: exit code 0 once the new process serves, 1 if the old one still does.
pub(crate) fn run(arguments: &UpgradeArguments) -> ExitCode {
    let admin = &arguments.admin;
    let upgraded = admin.post("/v1/upgrade", &json!({}));
    print(admin, upgraded, |upgraded| {
        let (pid, took) = (figure(&upgraded["pid"]), figure(&upgraded["milliseconds"]));
        format!(
            "The new process (pid {pid}) serves since {took} ms after the question. The old one finishes its calls.\n"
        )
    })
}
