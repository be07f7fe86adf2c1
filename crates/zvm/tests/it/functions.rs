//! Requests are known for what they ask, by the routes and functions of the SDK.

use proptest::prelude::*;
use tidegate_zvm::functions::{Effort, FUNCTIONS, FunctionKind, function};
use tidegate_zvm::path::Path;
use tidegate_zvm::routes::{BodyRule, ROUTES, RouteMatch, route};

/// Method, path, function (or `-` for what sdkwsgi answers itself), and a body that asks
/// for it: read off sdkwsgi's own routes, and confirmed against a running one.
const EXPECTED_ROUTES: &str = r#"
GET / -
POST /guests guest_create
GET /guests guest_list
GET /guests/stats guest_inspect_stats
GET /guests/interfacestats guest_inspect_vnics
GET /guests/nics guests_get_nic_info
POST /guests/volumes volume_attach
DELETE /guests/volumes volume_detach
GET /volumes/conn/{userid} get_volume_connector
POST /volumes/fcptemplates create_fcp_template
GET /volumes/fcptemplates get_fcp_templates
GET /volumes/fcptemplates/detail get_fcp_templates_details
DELETE /volumes/fcptemplates/{template_id} delete_fcp_template
PUT /volumes/fcptemplates/{template_id} edit_fcp_template
GET /volumes/fcp/{fcp_id} get_fcp_usage
PUT /volumes/fcp/{fcp_id} set_fcp_usage
PUT /volumes/volume_refresh_bootmap volume_refresh_bootmap
DELETE /guests/{userid} guest_delete
GET /guests/{userid} guest_get_definition_info
POST /guests/{userid}/action guest_start {"action": "start"}
POST /guests/{userid}/action guest_stop {"action": "stop"}
POST /guests/{userid}/action guest_softstop {"action": "softstop"}
POST /guests/{userid}/action guest_pause {"action": "pause"}
POST /guests/{userid}/action guest_unpause {"action": "unpause"}
POST /guests/{userid}/action guest_reboot {"action": "reboot"}
POST /guests/{userid}/action guest_reset {"action": "reset"}
POST /guests/{userid}/action guest_get_console_output {"action": "get_console_output"}
POST /guests/{userid}/action guest_register {"action": "register_vm"}
POST /guests/{userid}/action guest_deregister {"action": "deregister_vm"}
POST /guests/{userid}/action guest_live_migrate {"action": "live_migrate_vm"}
POST /guests/{userid}/action guest_resize_cpus {"action": "resize_cpus"}
POST /guests/{userid}/action guest_live_resize_cpus {"action": "live_resize_cpus"}
POST /guests/{userid}/action guest_resize_mem {"action": "resize_mem"}
POST /guests/{userid}/action guest_live_resize_mem {"action": "live_resize_mem"}
POST /guests/{userid}/action guest_grow_root_volume {"action": "grow_root_volume"}
POST /guests/{userid}/action guest_deploy {"action": "deploy"}
POST /guests/{userid}/action guest_capture {"action": "capture"}
GET /guests/{userid}/power_state_real guest_get_power_state_real
GET /guests/{userid}/info guest_get_info
GET /guests/{userid}/os_info guest_get_os_info
GET /guests/{userid}/online_cpu_num guest_get_online_cpu_num
GET /guests/{userid}/user_direct guest_get_user_direct
GET /guests/{userid}/adapters guest_get_adapters_info
POST /guests/{userid}/nic guest_create_nic
DELETE /guests/{userid}/nic/{vdev} guest_delete_nic
PUT /guests/{userid}/nic/{vdev} guest_nic_couple_to_vswitch {"info": {"couple": true}}
PUT /guests/{userid}/nic/{vdev} guest_nic_uncouple_from_vswitch {"info": {"couple": false}}
POST /guests/{userid}/interface guest_create_network_interface
DELETE /guests/{userid}/interface guest_delete_network_interface
GET /guests/{userid}/power_state guest_get_power_state
POST /guests/{userid}/disks guest_create_disks
DELETE /guests/{userid}/disks guest_delete_disks
PUT /guests/{userid}/disks guest_config_minidisks
GET /guests/{userid}/disks guest_get_disks_info
GET /smapi_health -
GET /smapi-healthy -
GET /host host_get_info
GET /host/guests host_get_guest_list
GET /host/diskpool host_diskpool_get_info
GET /host/diskpool_volumes host_get_diskpool_volumes
GET /host/volume host_get_volume_info
GET /host/ssi host_get_ssi_info
POST /images image_import
GET /images image_query
DELETE /images/{name} image_delete
PUT /images/{name} image_export
GET /images/{name}/root_disk_size image_get_root_disk_size
PUT /files -
POST /files -
POST /token -
GET /vswitches vswitch_get_list
POST /vswitches vswitch_create
GET /vswitches/{name} vswitch_query
DELETE /vswitches/{name} vswitch_delete
PUT /vswitches/{name} vswitch_grant_user {"vswitch": {"grant_userid": "X"}}
PUT /vswitches/{name} vswitch_revoke_user {"vswitch": {"revoke_userid": "X"}}
PUT /vswitches/{name} vswitch_set_vlan_id_for_user {"vswitch": {"user_vlan_id": "X"}}
GET /vswitch get_switch_info
"#;

/// Kind, effort, name: read off the SDK's own code.
const EXPECTED_FUNCTIONS: &str = "
write db create_fcp_template
write db delete_fcp_template
write db edit_fcp_template
read db get_fcp_templates
read db get_fcp_templates_details
read db get_fcp_usage
read db get_switch_info
write seconds get_volume_connector
write minutes guest_capture
write seconds guest_config_minidisks
write seconds guest_create
write seconds guest_create_disks
write seconds guest_create_network_interface
write seconds guest_create_nic
write seconds guest_delete
write seconds guest_delete_disks
write seconds guest_delete_network_interface
write seconds guest_delete_nic
write minutes guest_deploy
write db guest_deregister
read smapi guest_get_adapters_info
read seconds guest_get_console_output
read smapi guest_get_definition_info
read smapi guest_get_disks_info
read seconds guest_get_info
read seconds guest_get_online_cpu_num
read seconds guest_get_os_info
read cp guest_get_power_state
read cp guest_get_power_state_real
read smapi guest_get_user_direct
write seconds guest_grow_root_volume
read smapi guest_inspect_stats
read smapi guest_inspect_vnics
read db guest_list
write minutes guest_live_migrate
write seconds guest_live_resize_cpus
write seconds guest_live_resize_mem
write seconds guest_nic_couple_to_vswitch
write seconds guest_nic_uncouple_from_vswitch
write seconds guest_pause
write minutes guest_reboot
write seconds guest_register
write minutes guest_reset
write seconds guest_resize_cpus
write seconds guest_resize_mem
write minutes guest_softstop
write seconds guest_start
write seconds guest_stop
write seconds guest_unpause
read db guests_get_nic_info
read smapi host_diskpool_get_info
read smapi host_get_diskpool_volumes
read seconds host_get_guest_list
read smapi host_get_info
read smapi host_get_ssi_info
read smapi host_get_volume_info
write seconds image_delete
write minutes image_export
read db image_get_root_disk_size
write minutes image_import
read db image_query
write db set_fcp_usage
write minutes volume_attach
write minutes volume_detach
write minutes volume_refresh_bootmap
write smapi vswitch_create
write smapi vswitch_delete
read smapi vswitch_get_list
write smapi vswitch_grant_user
read smapi vswitch_query
write smapi vswitch_revoke_user
write smapi vswitch_set
write smapi vswitch_set_vlan_id_for_user
";

#[test]
fn every_function_of_the_sdk_is_in_the_table() {
    let rows: Vec<String> = FUNCTIONS
        .iter()
        .map(|function| {
            let kind = match function.kind {
                FunctionKind::Read => "read",
                FunctionKind::Write => "write",
            };
            let effort = match function.effort {
                Effort::Db => "db",
                Effort::Cp => "cp",
                Effort::Smapi => "smapi",
                Effort::Seconds => "seconds",
                Effort::Minutes => "minutes",
            };
            format!("{kind} {effort} {}", function.name)
        })
        .collect();
    let expected: Vec<&str> = EXPECTED_FUNCTIONS.trim().lines().collect();
    assert_eq!(rows, expected);
    assert_eq!(rows.len(), 73);
}

#[test]
fn every_function_is_found_by_its_name() {
    assert!(FUNCTIONS.is_sorted_by(|a, b| a.name < b.name));
    for row in FUNCTIONS {
        assert_eq!(function(row.name), Some(row));
    }
    assert_eq!(function("guest_get_inf"), None);
    assert_eq!(function(""), None);
}

#[test]
fn every_route_of_sdkwsgi_asks_for_its_function() {
    let mut checked = 0;
    for row in EXPECTED_ROUTES.trim().lines() {
        let mut cells = row.splitn(4, ' ');
        let mut cell = || cells.next().unwrap_or_default();
        let (method, pattern, expected, body) = (cell(), cell(), cell(), cell());
        let path = pattern
            .replace("{userid}", "HRX0018")
            .replace("{vdev}", "1000")
            .replace("{name}", "VSW1")
            .replace("{fcp_id}", "1a00")
            .replace("{template_id}", "t-1");
        let target = pattern.contains("{userid}").then_some("HRX0018");
        check_route(method, &path, expected, body, target);
        check_route(method, &format!("{path}?verbose=1"), expected, body, target);
        if path != "/" {
            check_route(method, &format!("{path}/"), expected, body, target);
        }
        if method == "GET" {
            check_route("HEAD", &path, expected, body, target);
        }
        checked += 1;
    }
    assert_eq!(checked, 78);
    // The three routes whose body names the function, and the array, are one row each.
    assert_eq!(ROUTES.len(), 78 - 17 - 1 - 2 + 1);
}

fn check_route(method: &str, path: &str, expected: &str, body: &str, target: Option<&str>) {
    match route(method, path) {
        RouteMatch::Function(name, found) => {
            assert_eq!((name, found, body), (expected, target, ""), "{path}");
        }
        RouteMatch::ReadBody(rule, found) => {
            let name = rule.function(body.as_bytes());
            assert_eq!((name.as_deref(), found), (Some(expected), target), "{path}");
        }
        RouteMatch::Unlimited => assert_eq!(expected, "-", "{path}"),
        RouteMatch::Other => panic!("{method} {path} is not known"),
    }
}

#[test]
fn every_name_in_the_routes_is_a_function() {
    for name in EXPECTED_ROUTES
        .trim()
        .lines()
        .filter_map(|row| row.split(' ').nth(2))
    {
        assert!(name == "-" || function(name).is_some(), "{name}");
    }
}

#[test]
fn an_unknown_route_is_other() {
    for (method, path) in [
        ("PATCH", "/guests"),
        ("GET", "/token"),
        ("POST", "/guests/X"),
        ("GET", "/guests//info"),
        ("GET", "//guests"),
        ("GET", "/guests/X/info/more"),
        ("GET", "/token/../guests"),
        ("GET", "guests"),
        ("GET", ""),
        ("OPTIONS", "*"),
        ("GET", "/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a"),
    ] {
        assert_eq!(route(method, path), RouteMatch::Other, "{method} {path}");
    }
}

#[test]
fn only_what_can_be_a_userid_becomes_the_target() {
    let check = |path, target| {
        assert_eq!(
            route("GET", path),
            RouteMatch::Function("guest_get_info", target),
        );
    };
    check("/guests/a$#@_-9/info", Some("a$#@_-9"));
    check("/guests/ninechars/info", None);
    check("/guests/%41/info", None);
}

#[test]
fn a_body_that_names_nothing_known_is_left_to_the_backend() {
    use BodyRule::{Action, Array, Couple, Vswitch};
    check_body(Action, r#"{"action": "start"}"#, Some("guest_start"));
    check_body(Action, r#"{"action": "\u0073tart"}"#, Some("guest_start"));
    check_body(
        Action,
        r#"{"action": "stop", "action": "start"}"#,
        Some("guest_start"),
    );
    check_body(Action, r#"{"action": "__class__"}"#, None);
    check_body(Action, r#"{"action": 7}"#, None);
    check_body(Action, r#"{"x": {"action": "start"}}"#, None);
    check_body(Action, r#"["action"]"#, None);
    check_body(Action, r#"{"action": "start""#, None);
    check_body(Action, "", None);
    let coupled = Some("guest_nic_couple_to_vswitch");
    let uncoupled = Some("guest_nic_uncouple_from_vswitch");
    check_body(
        Couple,
        r#"{"info": {"couple": "True", "vswitch": "V"}}"#,
        coupled,
    );
    check_body(Couple, r#"{"info": {"couple": "No"}}"#, uncoupled);
    check_body(Couple, r#"{"info": {"couple": "maybe"}}"#, None);
    check_body(Couple, r#"{"info": {}}"#, None);
    check_body(Couple, r#"{"couple": true}"#, None);
    check_body(
        Vswitch,
        r#"{"vswitch": {"user_vlan_id": {}, "revoke_userid": "X", "grant_userid": "X"}}"#,
        Some("vswitch_grant_user"),
    );
    check_body(
        Vswitch,
        r#"{"vswitch": {"user_vlan_id": {}, "revoke_userid": "X"}}"#,
        Some("vswitch_revoke_user"),
    );
    check_body(Vswitch, r#"{"vswitch": {"name": "V"}}"#, None);
    check_body(Vswitch, r#"{"vswitch": null}"#, None);
    check_body(Array, r#"["guest_list", [], {}]"#, Some("guest_list"));
    check_body(Array, r#"["of_a_site", [], {}]"#, Some("of_a_site"));
    check_body(Array, r#"["a\u0000b", [], {}]"#, None);
    check_body(Array, r#"["", [], {}]"#, None);
    check_body(Array, r#"["guest_list", []]"#, None);
    check_body(Array, r#"{"a": 1}"#, None);
}

fn check_body(rule: BodyRule, body: &str, expected: Option<&str>) {
    assert_eq!(
        rule.function(body.as_bytes()).as_deref(),
        expected,
        "{body}"
    );
}

proptest! {
    #[test]
    fn however_odd_the_path_and_the_body_what_is_found_is_a_function(
        path in prop_oneof![any::<String>(), "/(guests|vswitches|[{}?%/.a-z]{0,9})(/[^/]{0,9}){0,3}"],
        body in any::<Vec<u8>>(),
    ) {
        for method in ["GET", "POST", "PUT"] {
            let name = match route(method, &path) {
                RouteMatch::Function(name, _) => Some(name.to_owned()),
                RouteMatch::ReadBody(BodyRule::Array, _) => None,
                RouteMatch::ReadBody(rule, _) => rule.function(&body).map(Into::into),
                RouteMatch::Unlimited | RouteMatch::Other => None,
            };
            prop_assert!(name.is_none_or(|name| function(&name).is_some()));
        }
    }

    #[test]
    fn a_path_fits_the_pattern_that_it_is(segments in proptest::collection::vec("[a-z]{1,5}", 0..17)) {
        let path = format!("/{}", segments.join("/"));
        match Path::split(&path) {
            Some(path) => prop_assert!(path.matches(&segments).is_some()),
            None => prop_assert!(segments.len() > Path::SEGMENTS_MAX),
        }
    }
}
