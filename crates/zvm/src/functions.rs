//! The functions of the z/VM SDK server.
//!
//! The table is that of sdkserver as of 2026-06. Release 1.6.3 lacks a few of the functions, which
//! does no harm: it answers calls of them itself.

/// A function of the SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The function's name on the wire.
    pub name: &'static str,
    /// Whether it changes anything.
    pub kind: FunctionKind,
    /// The function's cost for the backend.
    pub effort: Effort,
}

/// Whether a function changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// The function changes no state, so identical calls may share an answer.
    Read,
    /// The function changes state, and a user waits for it.
    Write,
}

/// The cost of a function for the backend, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// The SDK's own database.
    Db,
    /// CP commands.
    Cp,
    /// The function makes one to three calls of SMAPI.
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
    let kind = FunctionKind::Read;
    Function { name, kind, effort }
}

const fn write(name: &'static str, effort: Effort) -> Function {
    let kind = FunctionKind::Write;
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
