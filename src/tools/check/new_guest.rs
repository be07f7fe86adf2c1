//! How long the calls for a new guest of z/VM may wait here, against the time that nova gives them.
//!
//! nova has no time-out for a spawn as a whole. Only its part for the network has one: from the
//! answer to `guest_create_network_interface` until the neutron agent has connected the ports, nova
//! waits for `vif_plugging_timeout`, and then deletes the guest. `reachable_timeout` in `[zvm]`
//! limited the same part in drivers outside nova's tree. nova 34 has the option and never reads it.

use std::time::Duration;

use serde_json::{Value, json};

use super::seconds;
use crate::admit::ClassDeadline;
use crate::call::sdk::Effort;
use crate::classify::Classifier;
use crate::config::Config;

/// The calls of nova's driver for a guest with a new image and an ephemeral disk, in order.
const NOVA: [&str; 10] = [
    "guest_list",
    "image_query",
    "image_import",
    "image_query",
    "image_get_root_disk_size",
    "guest_create",
    "guest_deploy",
    "guest_config_minidisks",
    "guest_create_network_interface",
    "guest_start",
];
/// The calls of the neutron agent for one port in a VLAN, in order. The first finds the port.
const NETWORK: [&str; 6] = [
    "guests_get_nic_info",
    "guests_get_nic_info",
    "guests_get_nic_info",
    "vswitch_grant_user",
    "vswitch_set_vlan_id_for_user",
    "guest_nic_couple_to_vswitch",
];
/// The default of both options of nova.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(300);
/// The part of it that waits may take. The rest is for the calls themselves.
const SHARE_OF_WAITS: f64 = 0.9;

/// The longest waits of the calls for a new guest.
#[derive(Debug)]
pub(in crate::tools) struct NewGuest {
    nova: LongestWaits,
    network: LongestWaits,
    /// The network, if reads of the SDK's database were exempt.
    network_without_reads: LongestWaits,
}

impl NewGuest {
    /// `None` if the backend is not z/VM.
    pub(in crate::tools) fn of(config: &Config) -> Option<Self> {
        if !config.classify.kind.has_table() {
            return None;
        }
        let classifier = Classifier::new(&config.classify);
        let waits = |functions: &[&str]| {
            let waits = functions.iter();
            LongestWaits(waits.map(|it| longest(config, &classifier, it)).collect())
        };
        let is_read = |function: &&&str| {
            let mut table = config.classify.kind.functions().iter();
            table.any(|it| it.name == **function && it.effort == Effort::Db)
        };
        let beside: Vec<&str> = NETWORK.iter().filter(|it| !is_read(it)).copied().collect();
        Some(Self {
            nova: waits(&NOVA),
            network: waits(&NETWORK),
            network_without_reads: waits(&beside),
        })
    }

    /// Two lines of the table.
    pub(super) fn rows(&self, row: &mut impl FnMut(&str, String)) {
        let (calls, waits) = (NOVA.len(), self.nova.in_words());
        let nova = format!("{calls} calls of nova {waits}, and nova has no time-out for them");
        row("a new guest", nova);
        let (calls, waits) = (NETWORK.len(), self.network.in_words());
        let timeout = seconds(NETWORK_TIMEOUT);
        let cure = self
            .cure()
            .map_or(String::new(), |cure| format!(": too long, {cure}"));
        let network = format!(
            "{calls} calls of the neutron agent for a port {waits}, and after {timeout} nova \
             deletes the guest (vif_plugging_timeout){cure}"
        );
        row("  its network", network);
    }

    /// A warning with the sum and the cure, if nova may delete the guest while its calls wait here.
    pub(in crate::tools) fn warning(&self) -> Option<String> {
        let cure = self.cure()?;
        let (calls, waits) = (NETWORK.len(), self.network.in_words());
        let timeout = seconds(NETWORK_TIMEOUT);
        Some(format!(
            "nova deletes a new guest whose network is not ready after {timeout} \
             (vif_plugging_timeout), and {calls} calls of the neutron agent for a port {waits}: {cure}"
        ))
    }

    /// The sum and the time-out as JSON.
    pub(super) fn json(&self) -> Value {
        let waits = |waits: &LongestWaits| waits.sum().map(|sum| sum.as_secs_f64());
        json!({
            "nova_calls": NOVA.len(), "nova_waits_seconds": waits(&self.nova),
            "network_calls": NETWORK.len(), "network_waits_seconds": waits(&self.network),
            "network_timeout_seconds": NETWORK_TIMEOUT.as_secs(), "cure": self.cure(),
        })
    }

    /// How to make the waits fit, if they do not.
    fn cure(&self) -> Option<String> {
        let room = NETWORK_TIMEOUT.mul_f64(SHARE_OF_WAITS);
        let fits = |waits: &LongestWaits| waits.sum().is_some_and(|sum| sum <= room);
        if fits(&self.network) {
            return None;
        }
        let shorter = |waits: &LongestWaits| {
            let waiting = waits.0.iter().filter(|it| **it != Some(Duration::ZERO));
            let calls = u64::try_from(waiting.count()).expect("a handful");
            format!(
                "let each of these wait {} s at most",
                room.as_secs() / calls.max(1)
            )
        };
        let raise = self.network.sum().map_or(String::new(), |sum| {
            let needed = (sum.as_secs_f64() / SHARE_OF_WAITS).ceil();
            format!(", or set vif_plugging_timeout = {needed} or more in nova.conf")
        });
        let reads_wait = self.network.0.len() - self.network_without_reads.0.len();
        let exempt = match fits(&self.network_without_reads) && reads_wait > 0 {
            true => format!(
                "add exempt = [\"db\"] to [limits], so that they {}, or ",
                self.network_without_reads.in_words()
            ),
            false => String::new(),
        };
        Some(format!("{exempt}{}{raise}", shorter(&self.network)))
    }
}

/// The longest waits of calls that follow one another; `None` waits until it is served.
#[derive(Debug)]
struct LongestWaits(Vec<Option<Duration>>);

impl LongestWaits {
    /// `None` if there is no longest wait.
    fn sum(&self) -> Option<Duration> {
        self.0.iter().copied().sum()
    }

    /// The sum with its parts: `wait 210 s at most (3 × 50 s + 3 × 20 s)`.
    fn in_words(&self) -> String {
        let Some(sum) = self.sum() else {
            return "may wait for any time".to_owned();
        };
        let mut lengths: Vec<Duration> = self.0.iter().flatten().copied().collect();
        lengths.retain(|length| !length.is_zero());
        lengths.sort_unstable();
        let same = lengths.chunk_by(|one, next| one == next);
        let parts: Vec<String> = same
            .map(|same| format!("{} × {}", same.len(), seconds(same[0])))
            .rev()
            .collect();
        match parts.is_empty() {
            true => "do not wait".to_owned(),
            false => format!("wait {} at most ({})", seconds(sum), parts.join(" + ")),
        }
    }
}

/// How long a call of this function may wait, at the listener where that is longest.
fn longest(config: &Config, classifier: &Classifier, function: &str) -> Option<Duration> {
    if config.classify.exempt.iter().any(|it| **it == *function) {
        return Some(Duration::ZERO);
    }
    let gate = &config.admit;
    let listeners = config.listen.listeners.iter();
    let mut waits = listeners.map(|listener| {
        let class = classifier.class_of(function, &listener.name);
        let rule = gate.classes.iter().find(|rule| *rule.name == *class);
        match rule.map_or(ClassDeadline::Ordinary, |rule| rule.deadline) {
            ClassDeadline::Ordinary => Some(gate.max_wait),
            ClassDeadline::After(length) => Some(length),
            ClassDeadline::Never => None,
        }
    });
    waits.try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}
