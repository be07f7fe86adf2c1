//! Checks the limits of this machine: descriptors, backlogs, ports, its clock, and the place of the state file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Finding;
use super::eyes::{PathAccess, ProbeUser};
use super::kinds::{CLOCK, CLOCK_SOURCE, DESCRIPTORS, LOCAL_PORTS, SOMAXCONN, STATE_FILE};
use crate::config::Config;
use crate::config::descriptors::Descriptors;
use crate::forward::{BackendAddress, Remote};
use crate::listen::BACKLOG;
use crate::state::{self, StateError};

/// Sources of time that cost a microsecond or more for each look at the clock.
const SLOW_SOURCES: [&str; 3] = ["acpi_pm", "hpet", "jiffies"];
/// Free space that a disk should have: what a state file may need at most, and its successor.   bytes
const ROOM: u64 = 128 << 20;

/// The files in which the kernel and services say how they are set.
pub(super) struct Machine<'a> {
    root: &'a Path,
}

impl<'a> Machine<'a> {
    pub(super) fn at(root: &'a Path) -> Self {
        Self { root }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The first line of a file.
    fn line(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.lines().next()?.trim().to_owned())
    }

    pub(super) fn somaxconn(&self) -> Finding {
        let line = self.line("proc/sys/net/core/somaxconn");
        match line.and_then(|line| line.parse().ok()) {
            Some(allowed) => somaxconn(allowed, BACKLOG.unsigned_abs().into()),
            None => SOMAXCONN.skipped("somaxconn", "net.core.somaxconn cannot be read"),
        }
    }

    pub(super) fn local_ports(&self, config: &Config) -> Finding {
        let line = self.line("proc/sys/net/ipv4/ip_local_port_range");
        let range = line.and_then(|line| {
            let mut ends = line.split_whitespace().map(str::parse::<u64>);
            Some((ends.next()?.ok()?, ends.next()?.ok()?))
        });
        let Some((first, last)) = range else {
            let found = "net.ipv4.ip_local_port_range cannot be read";
            return LOCAL_PORTS.skipped("local ports", found);
        };
        let ports = (last + 1).saturating_sub(first);
        let forward = &config.forward;
        let backends = [&forward.socket, &forward.http, &forward.tcp];
        let needs_ports = |it: &Remote| !matches!(it.address, BackendAddress::Unix(_));
        if !backends.into_iter().flatten().any(needs_ports) {
            return LOCAL_PORTS.ok("local ports", "no backend needs one");
        }
        let admit = &config.admit;
        let pooled = forward
            .http
            .as_ref()
            .map_or(0, |_| forward.bounds.pool_max_idle);
        let needed = u64::from(admit.workers) + u64::from(admit.max_unlimited) + pooled as u64;
        let found = format!("{ports}, and backends need up to {needed}");
        match ports >= needed {
            true => LOCAL_PORTS.ok("local ports", found),
            false => LOCAL_PORTS.warning(
                "local ports",
                found,
                format!("the range {first} to {last} has fewer ports than connections to a backend may need at once"),
                "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\", and keep it in \
                 /etc/sysctl.d/",
            ),
        }
    }

    pub(super) fn clock(&self) -> Finding {
        let is_there = |path: &str| self.path(path).exists();
        let any = |paths: &[&str]| paths.iter().any(|path| is_there(path));
        if is_there("run/systemd/timesync/synchronized") {
            return CLOCK.ok("clock", "set by systemd-timesyncd");
        }
        for (name, files) in [
            (
                "chronyd",
                &[
                    "run/chrony/chronyd.pid",
                    "run/chrony/chronyd.sock",
                    "run/chronyd.pid",
                ][..],
            ),
            ("ntpd", &["run/ntpd.pid", "run/ntpd/ntpd.pid"]),
            ("ntpsec", &["run/ntpsec/ntpd.pid"]),
        ] {
            if any(files) {
                return CLOCK.ok("clock", format!("{name} runs"));
            }
        }
        if is_there("run/systemd/timesync") {
            return CLOCK.warning(
                "clock",
                "systemd-timesyncd has not set it",
                "the time of day of this machine may be wrong: times in logs, fixed windows and \
                 expiring tokens follow it",
                "look at `timedatectl timesync-status`, and let this machine reach its time server",
            );
        }
        CLOCK.skipped("clock", "no time service can be seen from here")
    }

    pub(super) fn clock_source(&self) -> Finding {
        let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let Some(source) = self.line(path) else {
            return CLOCK_SOURCE.skipped("clock source", "it cannot be read");
        };
        match SLOW_SOURCES.contains(&&*source) {
            false => CLOCK_SOURCE.ok("clock source", source),
            true => CLOCK_SOURCE.warning(
                "clock source",
                &source,
                "each look at the clock takes a microsecond or more, and a call takes several",
                format!(
                    "find out why the kernel left tsc (`dmesg | grep -i tsc`), or give the \
                         virtual machine another clock than {source}"
                ),
            ),
        }
    }
}

/// Whether the kernel keeps as many connections as a listener asks for.
fn somaxconn(allowed: u64, asked: u64) -> Finding {
    let found = format!("{allowed}, and a listener asks for {asked}");
    match allowed >= asked {
        true => SOMAXCONN.ok("somaxconn", found),
        false => SOMAXCONN.warning(
            "somaxconn",
            found,
            format!(
                "the kernel keeps at most {allowed} connections of a storm until they are accepted; \
                 others are dropped and tried again a second later"
            ),
            format!("sysctl -w net.core.somaxconn={asked}, and keep it in /etc/sysctl.d/"),
        ),
    }
}

pub(super) fn descriptors(divided: &Descriptors) -> Finding {
    let allowed = match divided.limit {
        u64::MAX => "any number".to_owned(),
        limit => limit.to_string(),
    };
    let found = format!("{} needed, {allowed} allowed to this user", divided.needed);
    match divided.warning() {
        None => DESCRIPTORS.ok("descriptors", found),
        Some(problem) => DESCRIPTORS.warning("descriptors", found, problem.message, problem.cure),
    }
}

/// Whether the user of the sidecar can keep a state there; none if the config has no state file.
pub(super) fn state_file(config: &Config, eyes: &ProbeUser) -> Option<Finding> {
    let path = config.callers.state_file.as_deref()?;
    let place = path.display();
    let cure = "give the user that runs `tidegate serve` write access to the directory \
                (StateDirectory= in systemd), or change callers.state_file";
    let tried = match eyes.place_of_state(path) {
        PathAccess::AsItIs => eyes.look(|| state::try_writing(path)),
        PathAccess::Through(folder) => eyes.look(|| folder.try_writing()),
        PathAccess::MadeAtTheStart => {
            let found = format!("{place}: systemd makes its directory at the start");
            return Some(STATE_FILE.ok("state file", found));
        }
    };
    Some(match tried {
        Ok(free) if free < state::GROWTH_MAX as u64 => STATE_FILE.failed(
            "state file",
            format!("{place} has {} KiB of free space", free >> 10),
            "there is no room for the next state, so each change through the API is refused",
            "free space on this file system, or change callers.state_file",
        ),
        Ok(free) if free < ROOM => STATE_FILE.warning(
            "state file",
            format!("{place} has {} MiB of free space", free >> 20),
            "a full disk refuses each change through the API",
            "free space on this file system, or change callers.state_file",
        ),
        Ok(free) => STATE_FILE.ok(
            "state file",
            format!("{place} can be written, {} MiB free", free >> 20),
        ),
        Err(StateError::Unwritable(_, cause)) => {
            let found = format!("{place} cannot be written{}", eyes.by());
            let cure = match cause.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    "mount that file system for writing (StateDirectory= or ReadWritePaths= in \
                     systemd), or change callers.state_file"
                }
                _ => cure,
            };
            STATE_FILE.failed("state file", found, cause.to_string(), cure)
        }
        Err(error) => {
            let found = format!("{place} cannot be used");
            STATE_FILE.failed("state file", found, error.to_string(), cure)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::check::probe::CheckStatus;

    #[test]
    fn a_backlog_beyond_what_the_kernel_keeps_is_a_warning_with_its_cure() {
        assert_eq!(somaxconn(4096, 4096).status, CheckStatus::Ok);
        let small = somaxconn(128, 4096);
        assert_eq!(small.status, CheckStatus::Warning);
        assert_eq!(small.found, "128, and a listener asks for 4096");
        let cure = small.cure.expect("a cure");
        assert!(
            cure.starts_with("sysctl -w net.core.somaxconn=4096,"),
            "{cure}"
        );
    }

    #[test]
    fn a_clock_is_as_its_service_left_it() {
        let root = tempfile::tempdir().expect("a folder");
        let machine = Machine::at(root.path());
        assert_eq!(machine.clock().status, CheckStatus::Skipped);
        fs::create_dir_all(root.path().join("run/systemd/timesync")).expect("made");
        assert_eq!(machine.clock().status, CheckStatus::Warning);
        fs::write(root.path().join("run/systemd/timesync/synchronized"), "").expect("made");
        assert_eq!(machine.clock().found, "set by systemd-timesyncd");
        let folder = root
            .path()
            .join("sys/devices/system/clocksource/clocksource0");
        fs::create_dir_all(&folder).expect("made");
        for (source, status) in [("tsc", CheckStatus::Ok), ("hpet", CheckStatus::Warning)] {
            fs::write(folder.join("current_clocksource"), format!("{source}\n")).expect("made");
            assert_eq!(machine.clock_source().status, status, "{source}");
        }
    }
}
