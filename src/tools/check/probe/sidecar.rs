//! A sidecar with this config that runs already. What it holds is not in the way.

use std::path::Path;
use std::time::Duration;

use super::Finding;
use super::holder::Holder;
use super::kinds::SIDECAR;
use crate::call::Bind;
use crate::config::Config;
use crate::tools::client::{Admin, AdminAddress, AdminRequest, answer};
use crate::tools::runtime_file;

/// The bound of one question to it.
const BOUND: Duration = Duration::from_millis(500);
/// Name of the sidecar's process in the kernel.
const NAME: &str = "tidegate";

/// A running sidecar.
pub(super) struct Sidecar {
    /// Admin address of the sidecar, if it has one.
    address: Option<AdminAddress>,
    /// Whether it takes calls, or why not.
    ready: Result<(), String>,
    /// Where it listens, if it says so.
    binds: Option<Vec<String>>,
}

/// The sidecar with this config: the one that wrote its runtime file, or the one that answers on the
/// admin address of the config.
pub(super) fn find(path: &Path, config: &Config) -> Option<Sidecar> {
    let target = || {
        let admin = Admin {
            config: Some(path.to_owned()),
            ..Admin::default()
        };
        admin.target().ok()
    };
    let (address, token) = match runtime_file::read(path) {
        Ok(None) => {
            return Some(Sidecar {
                address: None,
                ready: Ok(()),
                binds: None,
            });
        }
        Ok(Some(address)) => {
            let target = target().filter(|target| target.address == address);
            (address, target.and_then(|it| it.token().map(str::to_owned)))
        }
        Err(_) => {
            let admin = &config.admin;
            if admin.bind.is_none() && admin.socket.is_none() {
                return None;
            }
            let target = target()?;
            (target.address.clone(), target.token().map(str::to_owned))
        }
    };
    let address = address.reachable();
    let ask = |path: &str| answer(&address, path, AdminRequest::Read, token.as_deref(), BOUND).ok();
    let (status, body) = ask("/readyz")?;
    let ready = match status {
        200 => Ok(()),
        503 => {
            let text = String::from_utf8_lossy(&body);
            let last = text.trim_end().lines().next_back().unwrap_or_default();
            Err(last.to_owned())
        }
        // Another program answers there.
        _ => return None,
    };
    let binds = match ask("/v1/config") {
        Some((200, body)) => Some(binds(&String::from_utf8_lossy(&body))?),
        // It keeps its config from those without a token.
        Some((401, _)) => None,
        _ => return None,
    };
    Some(Sidecar {
        address: Some(address),
        ready,
        binds,
    })
}

/// Every address in a config as TOML.
fn binds(config: &str) -> Option<Vec<String>> {
    let config: toml::Table = config.parse().ok()?;
    let text = |value: &toml::Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
    let listeners = config.get("listen")?.as_array()?.iter();
    let mut binds: Vec<String> = listeners.filter_map(|it| text(it, "bind")).collect();
    let admin = config.get("admin");
    binds.extend(admin.and_then(|it| text(it, "bind")));
    binds.extend(admin.and_then(|it| text(it, "socket")));
    Some(binds)
}

impl Sidecar {
    /// Whether it is the one that listens there.
    pub(super) fn holds(&self, bind: &Bind, holder: Option<&Holder>) -> bool {
        let is_listed = match &self.binds {
            Some(binds) => binds.contains(&bind.to_string()),
            None => true,
        };
        // Without an answer of its own, its file may be that of one that was killed.
        let is_it = match holder {
            Some(holder) => holder.name == NAME,
            None => self.address.is_some(),
        };
        is_listed && is_it
    }

    /// Whether it takes calls; none if it has no address to ask.
    pub(super) fn finding(&self) -> Option<Finding> {
        let address = self.address.as_ref()?;
        let found = format!("one runs, {address}");
        Some(match &self.ready {
            Ok(()) => SIDECAR.ok("sidecar", format!("{found}, and takes calls")),
            Err(why) => SIDECAR.warning(
                "sidecar",
                format!("{found}, and takes no calls"),
                why,
                "look at its log; a sidecar that drains ends by itself",
            ),
        })
    }
}
