//! Routes of sdkwsgi: which HTTP request asks for which function of the SDK.
//!
//! The table is that of sdkwsgi, the HTTP side of the SDK server, as of 2026-06.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::array::Elements;
use crate::path::{Path, PathMatch};
use crate::python_json::as_sound_json;

/// A row of the route table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteRow {
    /// The method; HEAD asks as GET does.
    pub method: Method,
    /// The path's segments; one in braces stands for any one segment.
    pub segments: &'static [&'static str],
    /// The function that such a request asks for.
    pub asks: RouteTarget,
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

/// The function that a request asks for, as far as its head shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// The request asks for this function.
    Function(&'static str),
    /// The request asks for a function that its body names.
    Body(BodyRule),
    /// The request does not reach the SDK: sdkwsgi answers it by itself.
    Unlimited,
}

/// Makes the table from one row a line: the method, the segments of the path, what is asked for.
macro_rules! routes {
    ($($method:ident [$($segment:literal),*] => $asks:expr;)*) => {
        &[$(RouteRow { method: $method, segments: &[$($segment),*], asks: $asks }),*]
    };
}

/// Every route of sdkwsgi, and the array of the socket protocol in HTTP dress. The first
/// match wins, so fixed segments stand before braces.
pub const ROUTES: &[RouteRow] = {
    use BodyRule::{Action, Array, Couple, Vswitch};
    use Method::{Delete, Get, Post, Put};
    use RouteTarget::{Body, Function, Unlimited};
    routes! {
        Get [] => Unlimited;
        Post [] => Body(Array);
        Post ["files"] => Unlimited;
        Put ["files"] => Unlimited;
        Get ["guests"] => Function("guest_list");
        Post ["guests"] => Function("guest_create");
        Get ["guests", "interfacestats"] => Function("guest_inspect_vnics");
        Get ["guests", "nics"] => Function("guests_get_nic_info");
        Get ["guests", "stats"] => Function("guest_inspect_stats");
        Post ["guests", "volumes"] => Function("volume_attach");
        Delete ["guests", "volumes"] => Function("volume_detach");
        Get ["guests", "{userid}"] => Function("guest_get_definition_info");
        Delete ["guests", "{userid}"] => Function("guest_delete");
        Post ["guests", "{userid}", "action"] => Body(Action);
        Get ["guests", "{userid}", "adapters"] => Function("guest_get_adapters_info");
        Get ["guests", "{userid}", "disks"] => Function("guest_get_disks_info");
        Post ["guests", "{userid}", "disks"] => Function("guest_create_disks");
        Put ["guests", "{userid}", "disks"] => Function("guest_config_minidisks");
        Delete ["guests", "{userid}", "disks"] => Function("guest_delete_disks");
        Get ["guests", "{userid}", "info"] => Function("guest_get_info");
        Post ["guests", "{userid}", "interface"] => Function("guest_create_network_interface");
        Delete ["guests", "{userid}", "interface"] => Function("guest_delete_network_interface");
        Post ["guests", "{userid}", "nic"] => Function("guest_create_nic");
        Put ["guests", "{userid}", "nic", "{vdev}"] => Body(Couple);
        Delete ["guests", "{userid}", "nic", "{vdev}"] => Function("guest_delete_nic");
        Get ["guests", "{userid}", "online_cpu_num"] => Function("guest_get_online_cpu_num");
        Get ["guests", "{userid}", "os_info"] => Function("guest_get_os_info");
        Get ["guests", "{userid}", "power_state"] => Function("guest_get_power_state");
        Get ["guests", "{userid}", "power_state_real"] => Function("guest_get_power_state_real");
        Get ["guests", "{userid}", "user_direct"] => Function("guest_get_user_direct");
        Get ["host"] => Function("host_get_info");
        Get ["host", "diskpool"] => Function("host_diskpool_get_info");
        Get ["host", "diskpool_volumes"] => Function("host_get_diskpool_volumes");
        Get ["host", "guests"] => Function("host_get_guest_list");
        Get ["host", "ssi"] => Function("host_get_ssi_info");
        Get ["host", "volume"] => Function("host_get_volume_info");
        Get ["images"] => Function("image_query");
        Post ["images"] => Function("image_import");
        Put ["images", "{name}"] => Function("image_export");
        Delete ["images", "{name}"] => Function("image_delete");
        Get ["images", "{name}", "root_disk_size"] => Function("image_get_root_disk_size");
        Get ["smapi-healthy"] => Unlimited;
        Get ["smapi_health"] => Unlimited;
        Post ["token"] => Unlimited;
        Get ["volumes", "conn", "{userid}"] => Function("get_volume_connector");
        Get ["volumes", "fcp", "{fcp_id}"] => Function("get_fcp_usage");
        Put ["volumes", "fcp", "{fcp_id}"] => Function("set_fcp_usage");
        Get ["volumes", "fcptemplates"] => Function("get_fcp_templates");
        Post ["volumes", "fcptemplates"] => Function("create_fcp_template");
        Get ["volumes", "fcptemplates", "detail"] => Function("get_fcp_templates_details");
        Put ["volumes", "fcptemplates", "{template_id}"] => Function("edit_fcp_template");
        Delete ["volumes", "fcptemplates", "{template_id}"] => Function("delete_fcp_template");
        Put ["volumes", "volume_refresh_bootmap"] => Function("volume_refresh_bootmap");
        Get ["vswitch"] => Function("get_switch_info");
        Get ["vswitches"] => Function("vswitch_get_list");
        Post ["vswitches"] => Function("vswitch_create");
        Get ["vswitches", "{name}"] => Function("vswitch_query");
        Put ["vswitches", "{name}"] => Body(Vswitch);
        Delete ["vswitches", "{name}"] => Function("vswitch_delete");
    }
};

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

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMatch<'a> {
    /// The function, and the userid that it is about.
    Function(&'a str, Option<&'a str>),
    /// The body names the function; the userid that it is about.
    ReadBody(BodyRule, Option<&'a str>),
    /// The request does not reach the SDK.
    Unlimited,
    /// The request has no known route.
    Other,
}

/// Looks up what a request asks for. A query and a slash at the end make no difference.
#[must_use]
pub fn route<'a>(method: &str, path: &'a str) -> RouteMatch<'a> {
    let method = match method {
        "GET" | "HEAD" => Method::Get,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        _ => return RouteMatch::Other,
    };
    let Some(path) = Path::split(path) else {
        return RouteMatch::Other;
    };
    for row in ROUTES.iter().filter(|row| row.method == method) {
        if let Some(PathMatch { target }) = path.matches(row.segments) {
            return match row.asks {
                RouteTarget::Function(name) => RouteMatch::Function(name, target),
                RouteTarget::Body(rule) => RouteMatch::ReadBody(rule, target),
                RouteTarget::Unlimited => RouteMatch::Unlimited,
            };
        }
    }
    RouteMatch::Other
}

/// Where a request's body names the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyRule {
    /// In `action`.
    Action,
    /// By `info.couple`: whether a network card is coupled to a switch or uncoupled.
    Couple,
    /// By the first of `grant_userid`, `revoke_userid`, `user_vlan_id` in `vswitch`.
    Vswitch,
    /// First in an array: a call of the socket protocol in HTTP dress.
    Array,
}

impl BodyRule {
    /// The function that a body names. None if it names no known function or is not JSON to Python:
    /// the backend answers that itself. Of several equal keys the last counts, as in Python.
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
                let elements = Elements::read(std::str::from_utf8(body).ok()?).ok()?;
                Some(Cow::Owned(elements.function.into_owned()))
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

/// The fields of an object, as raw text.
fn fields(object: &[u8]) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_slice(object).ok()
}

/// A boolean in any of the forms that sdkwsgi accepts.
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
