//! What the z/VM SDK server can do, and which HTTP request asks for which of it.
//!
//! The tables are those of the sdkserver and of sdkwsgi, its HTTP side, as of 2026-06.
//! Release 1.6.3 lacks a few of them, which does no harm: it answers for itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;
use serde_json::value::RawValue;

use crate::call::python_json::as_sound_json;
use crate::call::{BackendKind, userid};

/// The label of every function that neither the table nor the config names.
pub const OTHER: &str = "other";

/// Longest function name told from others.   bytes
const NAME_MAX: usize = 128;

/// One function of the SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name on the wire.
    pub name: &'static str,
    /// Whether it changes anything.
    pub kind: Kind,
    /// What it costs the backend.
    pub effort: Effort,
}

/// Whether a function changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It does not, so identical ones may share an answer.
    Read,
    /// It does, and a user waits for it.
    Write,
}

/// What a function costs the backend, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// The SDK's own database.
    Db,
    /// CP commands.
    Cp,
    /// One to three calls of SMAPI.
    Smapi,
    /// Several calls of SMAPI or into the guest.
    Seconds,
    /// Copies something or waits for something.
    Minutes,
}

/// Every function of the SDK, by name.
pub const FUNCTIONS: &[Function] = {
    use Effort::{Cp, Db, Minutes, Seconds, Smapi};
    &[
        write("create_fcp_template", Db),
        write("delete_fcp_template", Db),
        write("edit_fcp_template", Db),
        read("get_fcp_templates", Db),
        read("get_fcp_templates_details", Db),
        read("get_fcp_usage", Db),
        read("get_switch_info", Db),
        write("get_volume_connector", Seconds),
        write("guest_capture", Minutes),
        write("guest_config_minidisks", Seconds),
        write("guest_create", Seconds),
        write("guest_create_disks", Seconds),
        write("guest_create_network_interface", Seconds),
        write("guest_create_nic", Seconds),
        write("guest_delete", Seconds),
        write("guest_delete_disks", Seconds),
        write("guest_delete_network_interface", Seconds),
        write("guest_delete_nic", Seconds),
        write("guest_deploy", Minutes),
        write("guest_deregister", Db),
        read("guest_get_adapters_info", Smapi),
        read("guest_get_console_output", Seconds),
        read("guest_get_definition_info", Smapi),
        read("guest_get_disks_info", Smapi),
        read("guest_get_info", Seconds),
        read("guest_get_online_cpu_num", Seconds),
        read("guest_get_os_info", Seconds),
        read("guest_get_power_state", Cp),
        read("guest_get_power_state_real", Cp),
        read("guest_get_user_direct", Smapi),
        write("guest_grow_root_volume", Seconds),
        read("guest_inspect_stats", Smapi),
        read("guest_inspect_vnics", Smapi),
        read("guest_list", Db),
        write("guest_live_migrate", Minutes),
        write("guest_live_resize_cpus", Seconds),
        write("guest_live_resize_mem", Seconds),
        write("guest_nic_couple_to_vswitch", Seconds),
        write("guest_nic_uncouple_from_vswitch", Seconds),
        write("guest_pause", Seconds),
        write("guest_reboot", Minutes),
        write("guest_register", Seconds),
        write("guest_reset", Minutes),
        write("guest_resize_cpus", Seconds),
        write("guest_resize_mem", Seconds),
        write("guest_softstop", Minutes),
        write("guest_start", Seconds),
        write("guest_stop", Seconds),
        write("guest_unpause", Seconds),
        read("guests_get_nic_info", Db),
        read("host_diskpool_get_info", Smapi),
        read("host_get_diskpool_volumes", Smapi),
        read("host_get_guest_list", Seconds),
        read("host_get_info", Smapi),
        read("host_get_ssi_info", Smapi),
        read("host_get_volume_info", Smapi),
        write("image_delete", Seconds),
        write("image_export", Minutes),
        read("image_get_root_disk_size", Db),
        write("image_import", Minutes),
        read("image_query", Db),
        write("set_fcp_usage", Db),
        write("volume_attach", Minutes),
        write("volume_detach", Minutes),
        write("volume_refresh_bootmap", Minutes),
        write("vswitch_create", Smapi),
        write("vswitch_delete", Smapi),
        read("vswitch_get_list", Smapi),
        write("vswitch_grant_user", Smapi),
        read("vswitch_query", Smapi),
        write("vswitch_revoke_user", Smapi),
        write("vswitch_set", Smapi),
        write("vswitch_set_vlan_id_for_user", Smapi),
    ]
};

const fn read(name: &'static str, effort: Effort) -> Function {
    let kind = Kind::Read;
    Function { name, kind, effort }
}

const fn write(name: &'static str, effort: Effort) -> Function {
    let kind = Kind::Write;
    Function { name, kind, effort }
}

/// The function of this name.
#[must_use]
pub fn function(name: &str) -> Option<&'static Function> {
    let index = FUNCTIONS
        .binary_search_by(|function| function.name.cmp(name))
        .ok()?;
    Some(&FUNCTIONS[index])
}

/// One row of the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The method; HEAD asks as GET does.
    pub method: Method,
    /// The path's segments; one in braces stands for any one segment.
    pub segments: &'static [&'static str],
    /// What such a request asks for.
    pub asks: Asks,
}

/// The methods that sdkwsgi knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, and HEAD.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
}

impl Method {
    /// As it stands in a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// What a request asks for, as far as its head can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// This function.
    Function(&'static str),
    /// One that its body names.
    Body(BodyRule),
    /// Nothing that reaches the SDK: sdkwsgi answers it by itself.
    Unlimited,
}

/// Every route of sdkwsgi, and the array of the socket protocol in HTTP dress. The first
/// match wins, so fixed segments stand before braces.
pub const ROUTES: &[Row] = {
    use Asks::{Body, Function, Unlimited};
    use Method::{Delete, Get, Post, Put};
    &[
        row(Get, &[], Unlimited),
        row(Post, &[], Body(BodyRule::Array)),
        row(Post, &["files"], Unlimited),
        row(Put, &["files"], Unlimited),
        row(Get, &["guests"], Function("guest_list")),
        row(Post, &["guests"], Function("guest_create")),
        row(
            Get,
            &["guests", "interfacestats"],
            Function("guest_inspect_vnics"),
        ),
        row(Get, &["guests", "nics"], Function("guests_get_nic_info")),
        row(Get, &["guests", "stats"], Function("guest_inspect_stats")),
        row(Post, &["guests", "volumes"], Function("volume_attach")),
        row(Delete, &["guests", "volumes"], Function("volume_detach")),
        row(
            Get,
            &["guests", "{userid}"],
            Function("guest_get_definition_info"),
        ),
        row(Delete, &["guests", "{userid}"], Function("guest_delete")),
        row(
            Post,
            &["guests", "{userid}", "action"],
            Body(BodyRule::Action),
        ),
        row(
            Get,
            &["guests", "{userid}", "adapters"],
            Function("guest_get_adapters_info"),
        ),
        row(
            Get,
            &["guests", "{userid}", "disks"],
            Function("guest_get_disks_info"),
        ),
        row(
            Post,
            &["guests", "{userid}", "disks"],
            Function("guest_create_disks"),
        ),
        row(
            Put,
            &["guests", "{userid}", "disks"],
            Function("guest_config_minidisks"),
        ),
        row(
            Delete,
            &["guests", "{userid}", "disks"],
            Function("guest_delete_disks"),
        ),
        row(
            Get,
            &["guests", "{userid}", "info"],
            Function("guest_get_info"),
        ),
        row(
            Post,
            &["guests", "{userid}", "interface"],
            Function("guest_create_network_interface"),
        ),
        row(
            Delete,
            &["guests", "{userid}", "interface"],
            Function("guest_delete_network_interface"),
        ),
        row(
            Post,
            &["guests", "{userid}", "nic"],
            Function("guest_create_nic"),
        ),
        row(
            Put,
            &["guests", "{userid}", "nic", "{vdev}"],
            Body(BodyRule::Couple),
        ),
        row(
            Delete,
            &["guests", "{userid}", "nic", "{vdev}"],
            Function("guest_delete_nic"),
        ),
        row(
            Get,
            &["guests", "{userid}", "online_cpu_num"],
            Function("guest_get_online_cpu_num"),
        ),
        row(
            Get,
            &["guests", "{userid}", "os_info"],
            Function("guest_get_os_info"),
        ),
        row(
            Get,
            &["guests", "{userid}", "power_state"],
            Function("guest_get_power_state"),
        ),
        row(
            Get,
            &["guests", "{userid}", "power_state_real"],
            Function("guest_get_power_state_real"),
        ),
        row(
            Get,
            &["guests", "{userid}", "user_direct"],
            Function("guest_get_user_direct"),
        ),
        row(Get, &["host"], Function("host_get_info")),
        row(
            Get,
            &["host", "diskpool"],
            Function("host_diskpool_get_info"),
        ),
        row(
            Get,
            &["host", "diskpool_volumes"],
            Function("host_get_diskpool_volumes"),
        ),
        row(Get, &["host", "guests"], Function("host_get_guest_list")),
        row(Get, &["host", "ssi"], Function("host_get_ssi_info")),
        row(Get, &["host", "volume"], Function("host_get_volume_info")),
        row(Get, &["images"], Function("image_query")),
        row(Post, &["images"], Function("image_import")),
        row(Put, &["images", "{name}"], Function("image_export")),
        row(Delete, &["images", "{name}"], Function("image_delete")),
        row(
            Get,
            &["images", "{name}", "root_disk_size"],
            Function("image_get_root_disk_size"),
        ),
        row(Get, &["smapi-healthy"], Unlimited),
        row(Get, &["smapi_health"], Unlimited),
        row(Post, &["token"], Unlimited),
        row(
            Get,
            &["volumes", "conn", "{userid}"],
            Function("get_volume_connector"),
        ),
        row(
            Get,
            &["volumes", "fcp", "{fcp_id}"],
            Function("get_fcp_usage"),
        ),
        row(
            Put,
            &["volumes", "fcp", "{fcp_id}"],
            Function("set_fcp_usage"),
        ),
        row(
            Get,
            &["volumes", "fcptemplates"],
            Function("get_fcp_templates"),
        ),
        row(
            Post,
            &["volumes", "fcptemplates"],
            Function("create_fcp_template"),
        ),
        row(
            Get,
            &["volumes", "fcptemplates", "detail"],
            Function("get_fcp_templates_details"),
        ),
        row(
            Put,
            &["volumes", "fcptemplates", "{template_id}"],
            Function("edit_fcp_template"),
        ),
        row(
            Delete,
            &["volumes", "fcptemplates", "{template_id}"],
            Function("delete_fcp_template"),
        ),
        row(
            Put,
            &["volumes", "volume_refresh_bootmap"],
            Function("volume_refresh_bootmap"),
        ),
        row(Get, &["vswitch"], Function("get_switch_info")),
        row(Get, &["vswitches"], Function("vswitch_get_list")),
        row(Post, &["vswitches"], Function("vswitch_create")),
        row(Get, &["vswitches", "{name}"], Function("vswitch_query")),
        row(Put, &["vswitches", "{name}"], Body(BodyRule::Vswitch)),
        row(Delete, &["vswitches", "{name}"], Function("vswitch_delete")),
    ]
};

const fn row(method: Method, segments: &'static [&'static str], asks: Asks) -> Row {
    Row {
        method,
        segments,
        asks,
    }
}

/// The values of `action` in `POST /guests/{userid}/action`.
pub const ACTIONS: &[(&str, &str)] = &[
    ("capture", "guest_capture"),
    ("deploy", "guest_deploy"),
    ("deregister_vm", "guest_deregister"),
    ("get_console_output", "guest_get_console_output"),
    ("grow_root_volume", "guest_grow_root_volume"),
    ("live_migrate_vm", "guest_live_migrate"),
    ("live_resize_cpus", "guest_live_resize_cpus"),
    ("live_resize_mem", "guest_live_resize_mem"),
    ("pause", "guest_pause"),
    ("reboot", "guest_reboot"),
    ("register_vm", "guest_register"),
    ("reset", "guest_reset"),
    ("resize_cpus", "guest_resize_cpus"),
    ("resize_mem", "guest_resize_mem"),
    ("softstop", "guest_softstop"),
    ("start", "guest_start"),
    ("stop", "guest_stop"),
    ("unpause", "guest_unpause"),
];

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// This function, about this userid.
    Function(&'static str, Option<&'a str>),
    /// One that its body names, about this userid.
    ReadBody(BodyRule, Option<&'a str>),
    /// Nothing that reaches the SDK.
    Unlimited,
    /// Nothing known.
    Other,
}

/// Looks up what a request asks for. A query and a slash at the end make no difference.
#[must_use]
pub fn route<'a>(method: &http::Method, path: &'a str) -> Routed<'a> {
    let method = match *method {
        http::Method::GET | http::Method::HEAD => Method::Get,
        http::Method::POST => Method::Post,
        http::Method::PUT => Method::Put,
        http::Method::DELETE => Method::Delete,
        _ => return Routed::Other,
    };
    let Some(path) = Path::split(path) else {
        return Routed::Other;
    };
    for row in ROUTES.iter().filter(|row| row.method == method) {
        if let Some(Matched { target }) = path.matches(row.segments) {
            return match row.asks {
                Asks::Function(name) => Routed::Function(name, target),
                Asks::Body(rule) => Routed::ReadBody(rule, target),
                Asks::Unlimited => Routed::Unlimited,
            };
        }
    }
    Routed::Other
}

/// A request's path, cut into segments.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    segments: [&'a str; Path::SEGMENTS_MAX],
    count: usize,
}

/// A pattern fits a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched<'a> {
    /// What stands for `{userid}`, if it can be a userid.
    pub target: Option<&'a str>,
}

impl<'a> Path<'a> {
    /// A path of more segments matches nothing.
    pub const SEGMENTS_MAX: usize = 16;

    /// Cuts a path; none if it does not begin with a slash or is too long.
    #[must_use]
    pub fn split(path: &'a str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let mut segments = [""; Self::SEGMENTS_MAX];
        let (mut count, mut start, mut end) = (0, 0, path.len());
        // Byte by byte: for a few short segments, that is quicker than any search.
        for (at, byte) in path.bytes().enumerate() {
            if byte == b'?' {
                end = at;
                break;
            }
            if byte == b'/' {
                *segments.get_mut(count)? = &path[start..at];
                (count, start) = (count + 1, at + 1);
            }
        }
        // A slash at the end begins no segment.
        if start < end {
            *segments.get_mut(count)? = &path[start..end];
            count += 1;
        }
        Some(Self { segments, count })
    }

    /// Holds the path against a pattern.
    #[must_use]
    pub fn matches<S: AsRef<str>>(&self, pattern: &[S]) -> Option<Matched<'a>> {
        let segments = &self.segments[..self.count];
        if pattern.len() != segments.len() {
            return None;
        }
        let fits = |pattern: &S, segment: &str| match pattern.as_ref() {
            open if open.starts_with('{') => !segment.is_empty(),
            fixed => fixed == segment,
        };
        let mut pairs = pattern.iter().zip(segments);
        if !pairs.all(|(pattern, segment)| fits(pattern, segment)) {
            return None;
        }
        let target = pattern
            .iter()
            .position(|pattern| pattern.as_ref() == "{userid}")
            .and_then(|index| userid(segments[index]));
        Some(Matched { target })
    }
}

/// Where a request's body names the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyRule {
    /// In `action`.
    Action,
    /// By `info.couple`: whether a network card is coupled to a switch or uncoupled.
    Couple,
    /// By the first that `vswitch` has of `grant_userid`, `revoke_userid`, `user_vlan_id`.
    Vswitch,
    /// First in an array: a call of the socket protocol in HTTP dress.
    Array,
}

impl BodyRule {
    /// The function that a body names; none if it names none that is known, or is nothing that
    /// Python reads as JSON:
    /// the backend answers that itself. Of a key that stands twice the last counts, as in
    /// Python.
    #[must_use]
    pub fn function(self, body: &[u8]) -> Option<Cow<'static, str>> {
        self.named(body)
            .or_else(|| self.named(&as_sound_json(body)?))
    }

    fn named(self, body: &[u8]) -> Option<Cow<'static, str>> {
        match self {
            Self::Action => {
                let name: String = serde_json::from_str(fields(body)?.get("action")?.get()).ok()?;
                let (_, function) = ACTIONS.iter().find(|(action, _)| *action == name)?;
                Some(Cow::Borrowed(function))
            }
            Self::Couple => {
                let info = fields(body)?.remove("info")?;
                let couple = fields(info.get().as_bytes())?.remove("couple")?;
                Some(Cow::Borrowed(if truth(couple.get())? {
                    "guest_nic_couple_to_vswitch"
                } else {
                    "guest_nic_uncouple_from_vswitch"
                }))
            }
            Self::Vswitch => {
                let vswitch = fields(body)?.remove("vswitch")?;
                let vswitch = fields(vswitch.get().as_bytes())?;
                let (_, function) = VSWITCH_CHANGES
                    .iter()
                    .find(|(key, _)| vswitch.contains_key(*key))?;
                Some(Cow::Borrowed(function))
            }
            Self::Array => {
                let (name, _, _): (String, &RawValue, &RawValue) =
                    serde_json::from_slice(body).ok()?;
                let possible =
                    matches!(name.len(), 1..=NAME_MAX) && !name.contains(char::is_control);
                possible.then_some(Cow::Owned(name))
            }
        }
    }
}

/// In the order in which sdkwsgi asks for them.
const VSWITCH_CHANGES: [(&str, &str); 3] = [
    ("grant_userid", "vswitch_grant_user"),
    ("revoke_userid", "vswitch_revoke_user"),
    ("user_vlan_id", "vswitch_set_vlan_id_for_user"),
];

/// The fields of an object, as they stand in the text.
fn fields(object: &[u8]) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_slice(object).ok()
}

/// A truth value in any of the forms that sdkwsgi lets through.
fn truth(raw: &str) -> Option<bool> {
    let text: String = match raw.starts_with('"') {
        true => serde_json::from_str(raw).ok()?,
        false => raw.to_owned(),
    };
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// The names that metrics distinguish: a bounded set, each kept once.
#[derive(Clone, Debug)]
pub struct Names {
    known: HashSet<Arc<str>>,
    other: Arc<str>,
}

impl Names {
    /// The names of the table, where it applies, and these.
    #[must_use]
    pub fn new<'a>(kind: BackendKind, more: impl IntoIterator<Item = &'a Arc<str>>) -> Self {
        let table = match kind {
            BackendKind::Zvm => FUNCTIONS,
            BackendKind::Http => &[],
        };
        let table = table.iter().map(|function| Arc::from(function.name));
        Self {
            known: table.chain(more.into_iter().cloned()).collect(),
            other: Arc::from(OTHER),
        }
    }

    /// The kept name, if it is one of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<str>> {
        self.known.get(name)
    }

    /// What stands for all the rest.
    #[must_use]
    pub fn other(&self) -> &Arc<str> {
        &self.other
    }
}
